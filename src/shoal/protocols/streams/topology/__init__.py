"""Who is linked with whom: a policy owns the graph of one stream.

Begin with `policy.py`, the port, and `random_policy.py`, the policy of the paper. `aware_policy.py`
improves links while they are in use, by what `delay_reports.py` and `delay_map.py` know. Nothing
here knows messages, timers or addresses.
"""
