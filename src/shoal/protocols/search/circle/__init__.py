"""A node keeps some locations on the circle; the edges of these are its neighbours.

Begin with `circle.py`, then `join.py`. `clients.py` is for nodes without a location,
`partition_healing.py` for parts that lost each other. It must not know bubbles, documents or
queries.
"""
