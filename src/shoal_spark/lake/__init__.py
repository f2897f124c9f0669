"""Streams as Delta tables, each record exactly once.

The driver (`landing.py`) plans a batch; tasks fit records to a table's shape (`shapes.py`,
`fitting.py`) and write files (`parquet_writer.py`); the driver commits them under the batch's
number (`delta_table.py`). Begin with `landing.py`. Must not know the source: it takes any frame
with its columns.
"""
