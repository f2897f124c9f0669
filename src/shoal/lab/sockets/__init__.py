"""Experiments over real connections on this machine, with the delays of a table."""
