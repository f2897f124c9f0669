"""A node in its streams: it joins at a tracker, keeps neighbours, publishes and reports.

Begin with `stream_node.py`. One stream is in `joined_stream.py`, its neighbours' lives are in
`neighbours.py`. `tracker_selection.py` decides which tracker is asked and what happens if it fails
or is silent; `tracker_session.py` is the link to one. It knows `delivery/`, but not how a tracker
decides.
"""
