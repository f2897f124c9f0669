"""How much a message of the search protocol may carry, with the reason for each bound."""

from __future__ import annotations

from shoal.base.units import KIB

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1  # the thesis' integers, unless noted
UINT32_MAX = 2**32 - 1
HOPS_UNKNOWN = INT32_MAX  # of a SplitEdge whose sender does not know the size of the network

PAYLOAD_BYTES_MAX = 64 * KIB  # of a bubble: it is copied to thousands of nodes
MATCH_ITEMS_MAX = 64  # answers in one message; more go into the next one
ITEM_BYTES_MAX = PAYLOAD_BYTES_MAX + 1 * KIB  # a payload, and what proves whose it is
USER_DATA_BYTES_MAX = 64 * KIB  # of a user connection at once: others share the link
FRAME_BYTES_MAX = 256 * KIB  # a bubble with its header needs a third; a Match may be full

NONCE_BYTES = 8
WAY_BYTES = 4  # of a nonce: bubbles that share them, and their origin, take the same ways
BUBBLE_ID_BYTES = 16  # 2^64 live bubbles until two are likely to share an id by chance

EXTRAS_MAX = 32  # columns beside D0, D1 and D2: each is paid for in every Ping
EXTRA_NAME_CHARS_MAX = 64
REASON_CHARS_MAX = 256  # why somebody was refused: one line
CONNECTION_TYPE_CHARS_MAX = 64
OTHERS_MAX = 8  # hosts that a client is sent to
