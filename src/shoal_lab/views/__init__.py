"""Finished runs on the explorer's page."""
