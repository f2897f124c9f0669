"""A room for each subject, each with a network, figures and its kinds.

`streams/` begin with `delivery.py`; `loss/` the same over real kernels that lose packets, one
process a host; `overlays/` graphs alone; `topics/` begin with `experiment.py`; `search/` begin with
`network.py`, then `match.py`; `search_model/` search as arrays for a million nodes, begin with
`study.py`. search uses search_model, loss and topics use streams' figures and tables; nothing else
among them. They may look into machines (they are the observer), but only through the ports of
mechanism 5.
"""
