"""The tracker owns the topology of its streams and carries none of their data.

Begin with `tracker.py`. `stream_record.py` is one stream with its members; a policy of `topology/`
decides on links, and members hear of them as instructions. Nothing here needs numpy, but for
`delay_estimate.py`.
"""
