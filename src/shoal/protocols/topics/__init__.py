"""Durable topics: signed, content-addressed events, kept and passed on so that none is lost.

Begin with `machine.py`, then `topic.py` (what a node does with an event), `tree.py` (along which
links it is passed on) and `fetching.py` (how a missing parent is found). There is no table of nodes
here: the DHT machine is asked. It must not know streams or search.
"""
