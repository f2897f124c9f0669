"""A publisher whose messages go out in another order than it made them."""

from __future__ import annotations

from time import time_ns

import msgspec

from shoal.base.ids import MessageId
from shoal.base.units import MS_NS
from shoal.identity.message_body import JSON, Position
from shoal.node import Node, Stream
from shoal.protocols.streams.commands import ReadySent, SendReady
from shoal.protocols.streams.signed_message import VerifiedMessage, sign_message
from tests.transport.recorder import until


async def send_in_order(node: Node, stream: Stream, order: tuple[int, ...]) -> None:
    """Publish 0, 1, 2 and so on as one chain of a node, these first."""
    begun_ms = time_ns() // MS_NS
    made = [_message(node, stream, number, begun_ms) for number in range(len(order))]
    answers: list[ReadySent] = []
    node.host.listeners.append(
        lambda event: answers.append(event) if type(event) is ReadySent else None
    )
    for sent, number in enumerate(order):
        token = f"message {number}"
        await node.host.issue(
            node._memberships.machine, SendReady(stream.id, (made[number],)), token
        )
        await until(lambda count=sent: len(answers) > count, 10)  # type: ignore[misc]
    assert all(answer.sent for answer in answers)


def _message(node: Node, stream: Stream, number: int, begun_ms: int) -> VerifiedMessage:
    id = MessageId(stream.id, 0, begun_ms + number, 0, node.id, "made elsewhere")
    previous = Position(begun_ms + number - 1, 0) if number else None
    content = msgspec.json.encode(number)
    return sign_message(node._key.sign, id, previous, JSON, content)
