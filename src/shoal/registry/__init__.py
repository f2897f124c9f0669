"""Which streams there are, who may do what in them, and where nodes are found.

Begin with `port.py`, then `contract_registry.py`: the port over the contracts of a chain.
`block_follower.py` knows which block counts, `sender.py` follows a change until it is final.
`chain.py` is the port of chains; `embedded.py` and `rpc_chain.py` implement it.
"""
