"""Shoal as a source of Spark: `spark.read.format("shoal")` and `spark.readStream.format("shoal")`.

Driver and executors read the HTTP log of storage nodes (base/log_pages.py), and check every
signature themselves. Begin with `source.py`; what may be read, and by whom, is planned in
`planning.py` and `following.py`, on the driver; `reading.py` is what executors do.
"""
