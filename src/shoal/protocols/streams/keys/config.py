"""Bounds and times of keys, with their reasons."""

from __future__ import annotations

import msgspec

from shoal.base.units import MS_NS, S_NS

KEYS_FRAME_BYTES_MAX = 1024  # a request with the longest stream id has about 400

KEY_AGE_NS = 24 * 3600 * S_NS
"""A publisher replaces its key at least so often. Readers rely on it: the announcement of a key
lies no further than this before a message that is sealed with it."""


class SealingConfig(msgspec.Struct, frozen=True):
    """When a publisher takes another key."""

    age_ns: int = KEY_AGE_NS
    seals_max: int = 2**24
    """Messages under one key; AES-GCM would bear more (2^32), but nobody needs them."""
    own_keys_max: int = 64
    """Keys of this process that somebody new is given, for the history: the newest."""
    readers_max: int = 16_384
    """Readers for whom keys are wrapped, 16 messages of 110 KB: the rest asks for them."""


class ExchangeConfig(msgspec.Struct, frozen=True):
    """Asking for keys, and answering."""

    finds_max: int = 256
    """Keys that are looked for at once."""
    dial_ns: int = 3 * S_NS
    """A service link that is not up by then is not waited for. Most take half a second; a call
    through NATs takes some round trips more."""
    ask_ns: int = 1 * S_NS
    """One who does not answer by then is passed over."""
    idle_ns: int = 1 * S_NS
    """A link that nothing was asked over for this long is given back."""
    questions_per_peer_max: int = 16
    """On their way to one peer at once; it takes 64."""
    again_ns: int = 1 * S_NS
    """Between two rounds over all who may have it: they may be looking for it themselves."""
    named_ns: int = 5 * S_NS
    """Whom a tracker named is asked for so long before it is asked again: others may have come."""
    named_max: int = 256
    """Publishers of whom it is remembered."""
    patience_ns: int = 10 * S_NS
    """Then it is said that nobody has it."""
    requests_burst: int = 64
    request_ns: int = 100 * MS_NS
    """A peer may ask so often at once, and then once in this time: a wrap takes 0.1 ms."""
    request_peers_max: int = 4096
    met_max: int = 4096
    """Readers whose public keys are remembered: about a megabyte."""
    expected_ns: int = 10 * S_NS
    """A reader that the tracker has announced may come for so long: as long as it asks."""
    expected_max: int = 256
    """Readers that are expected: each is dialled. More have to ask others, or again."""
    checks_max: int = 256
    """Requests that wait for the registry's word; more are answered as if the key were not here."""


class WaitingConfig(msgspec.Struct, frozen=True):
    """Messages whose key is not here."""

    patience_ns: int = 10 * S_NS
    """A message waits so long for its key, then it is shown without its content."""
    chain_messages_max: int = 512
    messages_max: int = 2048
    """Of one chain, and of one subscription: the oldest goes on without its content."""
