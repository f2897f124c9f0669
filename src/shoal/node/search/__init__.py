"""Search for applications.

Begin with `client.py`: the search machine, how the node finds its way into the network, and its
questions. `documents.py` are published, `results.py` come back. Only `announcements.py` knows
streams and topics: public ones are found by search.
"""
