"""The demo: a city's vehicles over a real network, with Spark beside it, all of it checked.

`fleet/` makes up vehicles from a seed (numpy only), `tables/` are what Spark makes of their
messages (history and live by the same code; begin with `vehicle_tables.py`), `demo/` runs it as
processes (begin with `coordinator.py`) and says what was lost, double or invented.
"""
