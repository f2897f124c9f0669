"""The number that a message begins with: four bytes, big-endian.

The thesis prints nine. They come in families by their last byte: 0x01 and up is said by the master
of an edge, 0x41 and up by its slave, 0x80 and up by either. Eleven messages have no printed number:
either the thesis names them and no number (clients, users), or it says what happens without a
message of its own (Match, the end of an edge). Theirs are chosen here, beside the printed ones.
"""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """One for each type of message, for ever."""

    # Printed (2.2.3 to 2.2.6)
    MASTER_HELLO = 0x5E000001
    REDIRECT = 0x5E000002
    BREAK_EDGE = 0x5E000003
    SLAVE_HELLO = 0x5E000041
    MERGE_EDGE = 0x5E000042
    CANCEL = 0x5E000043
    SPLIT_EDGE = 0x5E000080
    PING = 0x5E000081
    BUBBLE_CAST = 0x5E000082

    # Chosen: either end of an edge says them, so they go on with the family 0x80
    MATCH = 0x5E000083
    EDGE_CLOSED = 0x5E000084

    # Chosen: client and host, the family 0xC0
    CLIENT_HELLO = 0x5E0000C1
    CLIENT_OK = 0x5E0000C2
    CLIENT_DENY = 0x5E0000C3
    CLIENT_REDIRECT = 0x5E0000C4

    # Chosen: user connections, the family 0xE0
    USER_CONNECT = 0x5E0000E1
    USER_ACCEPT = 0x5E0000E2
    USER_REFUSE = 0x5E0000E3
    USER_DATA = 0x5E0000E4
    USER_END = 0x5E0000E5
