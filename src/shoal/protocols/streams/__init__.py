"""Live streams: overlays that trackers build, and the nodes that flood them."""
