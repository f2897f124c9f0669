"""Verbs of the lab: `shoal lab`, `shoal pipeline reddit`."""
