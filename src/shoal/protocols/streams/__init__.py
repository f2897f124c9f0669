"""Live streams: trackers build overlays, members flood them, storage nodes keep them.

Begin with `member/stream_node.py`, a node in its streams, and `tracker/tracker.py`, which decides
who is whose neighbour. A message goes from the member through `signed_message.py` to
`delivery/flooding.py`, there and at each neighbour. Machines speak by inputs and effects only:
nothing here knows a clock, a socket, a disk or a registry, nor topics and search.
"""
