"""Group keys of streams that are encrypted: who seals with what, and how readers come by keys.

ring       the keys that a node holds
sealing    a publisher's own key of a stream: made, announced, replaced in time
machine    asking others for a key, and answering
waiting    messages whose key is not here yet

What is sealed and wrapped, and how, is in `shoal.identity`. See docs/encryption.md.
"""
