"""The short cut for copies: it knows what came of late, and not much more."""

from __future__ import annotations

from shoal.protocols.streams.delivery.replay_buffer import TURN_BYTES, TURN_NS, Copies
from shoal.protocols.streams.signed_message import PlacedMessage
from tests.support.streams import NOW_NS, message_id, placed


def numbered(number: int, size_bytes: int = 8) -> PlacedMessage:
    return placed(message_id(number), signed=number.to_bytes(size_bytes, "big"))


def test_a_message_is_known_for_a_turn_and_for_two_at_most() -> None:
    copies = Copies()
    first, second, third = (numbered(number) for number in range(3))
    copies.add(first, NOW_NS)
    copies.add(second, NOW_NS + TURN_NS)
    assert copies.old == {first.signed: first}
    assert copies.new == {second.signed: second}
    copies.add(third, NOW_NS + 2 * TURN_NS)
    assert copies.old == {second.signed: second}


def test_large_messages_make_turns_shorter() -> None:
    copies = Copies()
    for number in range(40):
        copies.add(numbered(number, TURN_BYTES // 8), NOW_NS)
    held_bytes = sum(map(len, (*copies.new, *copies.old)))
    assert TURN_BYTES <= held_bytes <= 2 * TURN_BYTES + TURN_BYTES // 4


def test_what_is_forgotten_is_not_known() -> None:
    copies = Copies()
    copies.add(numbered(1), NOW_NS)
    copies.add(numbered(2), NOW_NS + TURN_NS)
    copies.forget()
    assert not copies.new
    assert not copies.old
