"""Streams as Delta tables: begin with land.py."""
