"""Vehicles of a city, made up from a seed.

Begin with `fleet.py`.
"""
