"""From a frame to the application: each message once, checked, passed on, in order.

Begin with `flooding.py`: it drops duplicates, has signatures checked and forwards. `chain_table.py`
knows what was seen and whose turn it is. `gap_repair.py` asks neighbours for what is missing, then
storage; `replay_buffer.py` answers them. Nothing here knows who chose the neighbours.
"""
