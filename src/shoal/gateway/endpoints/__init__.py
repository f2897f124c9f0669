"""What a gateway serves over HTTP, a file for each resource.

`publishing.py`, `live.py` and `history.py` are for streams; `storage_log.py` and `outbox.py` are
what Spark's source and sink ask; `status.py` and `metrics.py` show the node.
"""
