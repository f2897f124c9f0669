"""Group keys of streams that are encrypted: who seals with what, and how readers come by keys.

ring       the keys that a node holds
sealing    a publisher's own key of a stream: made, announced, replaced in time
machine    the exchange of keys: its two sides are
finding    asking others for a key
answering  answering those who ask
vicinity   what these two know of the overlay
waiting    messages whose key is not here yet

What is sealed and wrapped, and how, is in `shoal.identity`. See docs/encryption.md.
"""
