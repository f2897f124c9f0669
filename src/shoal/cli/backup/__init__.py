"""`shoal backup` and `shoal restore`: everything that a node must not lose, in one file."""
