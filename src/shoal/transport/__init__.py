"""Authenticated links between nodes, over whatever carries bytes."""
