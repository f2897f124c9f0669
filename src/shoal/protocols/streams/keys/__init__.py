"""Group keys of encrypted streams: how readers come by the key of a publisher.

Begin with `key_exchange.py`: it asks others for a key, and answers them. `key_ring.py` holds and
renews keys; `sealed_queue.py` holds messages whose key is not here yet, in order. Sealing itself is
in `shoal.identity`, and who may read is decided elsewhere. See docs/encryption.md.
"""
