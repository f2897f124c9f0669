"""What a node does beside its own streams, by its network file: storage, registry, outbox.

The tracker is a machine and needs no role. [dht], [topics] and [search] are built where they are
used: `topics/client.py` and `search/client.py`.
"""
