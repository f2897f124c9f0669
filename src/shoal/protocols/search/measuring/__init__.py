"""How large the network is, by push-sum with fish (thesis 2.2.5).

Begin with `measurement.py`; one round is in `measurement_round.py`; `plausibility.py` says which
pings and results are believed. It must not know the circle or bubbles.
"""
