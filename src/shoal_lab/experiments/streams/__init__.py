"""Delivery in streams, in the simulator and over sockets.

Begin with `delivery.py`.
"""
