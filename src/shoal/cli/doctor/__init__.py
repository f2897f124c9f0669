"""`shoal doctor`: what would keep a node from working here, and what to do about it."""
