"""How large a bubble must be, how it is split and forwarded, how answers find back.

Begin with `own_bubbles.py`, where a bubble begins, and `bubble_relay.py`, which passes on those of
others. It carries payloads and must not judge what they say.
"""
