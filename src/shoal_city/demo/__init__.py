"""The demo as processes, and what was lost, double or invented.

Begin with `coordinator.py`.
"""
