"""The contract between pure machines and what drives them.

A machine takes inputs, named in the past tense, and returns effects, named as imperatives. Begin
with `machine.py`, `inputs.py` and `effects.py`, then `host.py`: the rules that every driver keeps.
`records.py` lists everything that can be observed. `fake_host.py` is the fake beside the Host.
Nothing here knows a protocol, asyncio, sockets or threads.
"""
