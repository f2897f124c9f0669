"""Standing queries: our own, left with other nodes and renewed, and those of others.

Begin with `own_watches.py` and `stored_watches.py`; `watch_filter.py` says which of them a document
could match.
"""
