"""Kademlia: which nodes are near a place, and which values are kept there.

Begin with `machine.py`, then `lookup.py`. Other machines of the node ask it to find, get and put.
What a value is worth is decided by the validators that it was given. It must not know topics or
search.
"""
