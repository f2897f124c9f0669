"""What the bytes of all messages have in common.

A frame is a table of the thesis, then one msgpack array with what Shoal adds: the edge, signed
records, the header. The msgpack part of a message without a table follows its code at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from shoal.base.errors import MalformedMessage
from shoal.protocols.search.messages import Totals
from shoal.protocols.search.wire.codes import Code

INFINITY = float("inf")

extend = msgspec.msgpack.Encoder().encode


class Form(NamedTuple):
    """How one type of message is written and read. `read` gets a frame that begins with the code;
    it raises MalformedMessage, or what msgspec raises."""

    code: Code
    message: type
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]


def read_totals(nodes: float, degrees: float, squares: float) -> Totals:
    """Sums that can be: finite, not negative. One NaN would spread through the whole network."""
    if 0.0 <= nodes < INFINITY and 0.0 <= degrees < INFINITY and 0.0 <= squares < INFINITY:
        return Totals(nodes, degrees, squares)
    raise MalformedMessage(f"D0 {nodes}, D1 {degrees}, D2 {squares}: each is finite, 0 or more")
