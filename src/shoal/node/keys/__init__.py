"""The node's own key, and the keys of streams.

`key_lock.py`: one key is one node. `group_keys.py` is what a node opens messages with,
`key_distribution.py` what it seals with, and who is given that.
"""
