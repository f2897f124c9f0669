"""Whether a message that is published has to wait for a first neighbour."""

from __future__ import annotations

import pytest

from shoal.base.errors import StreamUnavailable
from shoal.protocols.streams.commands import JoinStream
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.member.joined_stream import StreamState, join_stream
from shoal.protocols.streams.member.neighbours import Neighbour, State
from tests.support.streams import ALICE, ME, NOW_NS, STREAM, contact, message_id, placed


@pytest.fixture
def state() -> StreamState:
    return join_stream(JoinStream(STREAM), ME, NodeConfig(), NOW_NS)


def link(state: StreamState, *, active: bool) -> None:
    kind = State.ACTIVE if active else State.DIALLING
    state.overlay.neighbours[ALICE] = Neighbour(contact(ALICE), kind, NOW_NS, peer_opened=active)
    state.channel.active = tuple(state.overlay.active())


@pytest.mark.parametrize(
    ("ready", "neighbour", "waits"),
    [
        (False, None, True),  # the tracker has not answered
        (False, "active", True),  # it may be a newcomer like us
        (True, None, False),  # we are alone, and that is all there is
        (True, "dialling", True),
        (True, "active", False),
    ],
)
def test_it_waits_until_somebody_can_hear_it(
    state: StreamState, ready: bool, neighbour: str | None, waits: bool
) -> None:
    state.ready = ready
    if neighbour is not None:
        link(state, active=neighbour == "active")
    assert state.holds(held_max=10) is waits


def test_so_many_may_wait_and_then_the_publisher_is_told_why(state: StreamState) -> None:
    for number in range(2):
        assert state.holds(held_max=2)
        state.held.append(placed(message_id(number)))
    with pytest.raises(
        StreamUnavailable, match="2 messages wait for a first neighbour; is tracker"
    ):
        state.holds(held_max=2)
    state.ready = True
    assert not state.holds(held_max=2), "none waits any more: the publisher may go on"
