"""Reading.

On the driver `options.py` checks a query's options, `follower.py` plans how far it may go from what
storage nodes say (`log_client.py`) and holds leases; a task gets one range (`offsets.py`), reads it
page by page (`readers.py`) and makes rows of it (`rows.py`), checking every signature. Begin with
`readers.py`. Nothing here trusts a server.
"""
