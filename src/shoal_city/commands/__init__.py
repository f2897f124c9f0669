"""Verbs of the demo: `shoal demo`, `shoal pipeline vehicles`."""
