"""Shoal: decentralised publish/subscribe and search, and a lab to measure it."""

__version__ = "0.1.0"
