"""Words that every layer speaks: ids, units, errors, bounded containers, offsets.

Begin with `errors.py`, the one tree of errors, then `ids.py`. `gateway_messages.py` has the HTTP
bodies that a gateway and Spark exchange. Nothing here knows keys, machines, sockets or files.
"""
