"""What a topic and its events are: descriptors, their bytes, their names, who signed them.

Begin with `descriptors.py`. `descriptor_codec.py` makes blocks of them by `dag_cbor.py`; `cid.py`
names a block by its hash; `event_signatures.py` says who signs which bytes.
"""
