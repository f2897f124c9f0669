"""Ids, units and errors: what every other layer speaks in."""
