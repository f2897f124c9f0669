"""The circle: locations, edges, and the messages that keep them."""
