"""Streams, topics and searches as Spark DataFrames, and DataFrames into streams.

Begin with `format.py`: it names the reader or writer of each query; `session.py` builds a session.
What executors load (format, source, sink, lake, gateway_connection, batch_fingerprint, folders)
knows only base, identity and kernel of `shoal` and talks to nodes by HTTP; only `commands.py` knows
the command line. It must not know nodes, protocols or the lab.
"""
