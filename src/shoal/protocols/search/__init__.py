"""BubbleStorm: exhaustive search in a random multigraph that keeps together as one circle."""
