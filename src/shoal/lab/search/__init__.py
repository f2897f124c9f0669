"""Search in the lab: studies of BubbleStorm networks."""
