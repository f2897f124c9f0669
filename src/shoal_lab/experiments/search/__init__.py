"""Search in the simulator.

Begin with `network.py`, then `match.py`.
"""
