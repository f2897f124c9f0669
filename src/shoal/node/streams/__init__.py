"""Streams for applications.

Begin with `stream.py`. A message to publish gets its partition (`message.py`), is sealed, signed
and perhaps kept (`publishing.py`). A subscription reads history first, then what is live
(`subscription.py`); offsets are made in `reader_offsets.py`. `memberships.py` knows why the node is
in a stream.
"""
