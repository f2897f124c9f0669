"""Experiments with the tracker's algorithm alone: many overlays, no network."""
