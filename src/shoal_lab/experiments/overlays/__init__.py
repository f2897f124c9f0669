"""Overlays as graphs alone, grown without a network."""
