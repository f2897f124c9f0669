"""What storage nodes keep, and how readers get it.

Begin with `client.py`, which asks, or `storage_node.py`, which answers one page at a time and
remembers no reader: a read that one storage node cannot finish goes on at another. Storage nodes
follow each other's logs (`anti_entropy.py`); an answer says up to when it speaks for the others
(`replica_set.py`). Nothing here knows lmdb: the disk is asked with `disk_requests.py`.
"""
