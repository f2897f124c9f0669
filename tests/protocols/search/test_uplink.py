"""The one way out: by priority, at a rate, and nothing important is lost."""

from __future__ import annotations

from shoal.base.units import S_NS
from shoal.kernel.effects import CancelTimer, Effect, Send, SetTimer
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.messages import Cancel, Match, UserData
from shoal.protocols.search.upload_limit import AROUND_BYTES, UPLINK, Uplink
from tests.support.bubbles import a_cast
from tests.support.circle import Peer
from tests.support.search_messages import EDGE

ANN, BEN = Peer(1), Peer(2)
RATE = 10_000.0


def limited(queue_bytes: int = 1 << 20) -> Uplink:
    config = SearchConfig(upload_bytes_s=RATE, upload_burst_ns=0, upload_queue_bytes=queue_bytes)
    return Uplink(config)


def data(size: int) -> Send:
    return Send(UserData(1, bytes(size - AROUND_BYTES)), (ANN.node,))


def bubble(size: int) -> Send:
    return Send(a_cast(BEN, bytes(size - AROUND_BYTES)), (ANN.node,))


def sends(effects: list[Effect]) -> list[Send]:
    return [effect for effect in effects if isinstance(effect, Send)]


def test_without_a_limit_everything_passes_in_order() -> None:
    uplink = Uplink(SearchConfig())
    effects: list[Effect] = [data(5000), CancelTimer("a"), bubble(9000)]
    assert uplink.pass_on(effects, 0) == effects
    assert uplink.flush(0) == []
    assert uplink.idle
    assert uplink.has_room(1, 1000, 0)
    assert not uplink.congested(0)
    assert uplink.used(S_NS) == 0.0


def test_what_waits_leaves_at_the_rate() -> None:
    uplink = limited()
    first, second = data(5000), data(1000)
    assert uplink.pass_on([first, second], 0) == [first, SetTimer(UPLINK, S_NS // 2)]
    assert not uplink.idle
    assert uplink.pass_on([], S_NS // 2) == [second]
    assert uplink.idle


def test_the_circle_goes_before_bubbles() -> None:
    uplink = limited()
    cancel = Send(Cancel(EDGE), (BEN.node,))
    uplink.pass_on([bubble(5000), bubble(1000)], 0)
    uplink.pass_on([cancel], 0)
    assert sends(uplink.flush(S_NS // 2))[0] == cancel


def test_what_is_no_message_does_not_wait() -> None:
    uplink = limited()
    effects = uplink.pass_on([data(5000), data(5000), CancelTimer("a")], 0)
    assert CancelTimer("a") in effects
    assert len(sends(effects)) == 1


def test_a_full_queue_loses_bubbles_and_answers_only() -> None:
    uplink = limited(queue_bytes=2000)
    uplink.pass_on([data(1000)], 0)  # leaves at once
    answers = Send(Match(bytes(16), (bytes(1500),), True), (ANN.node,))
    uplink.pass_on([data(1500), bubble(1500), answers, data(1500)], 0)
    uplink.pass_on([Send(Cancel(EDGE), (ANN.node,))], 0)
    assert uplink.dropped == 2
    later = [send for at in range(10) for send in sends(uplink.flush(at * S_NS // 5))]
    assert [type(send.message) for send in later] == [Cancel, UserData, UserData]


def test_a_long_queue_is_congestion() -> None:
    uplink = limited()
    uplink.pass_on([data(30_000)], 0)
    assert uplink.congested(0)
    assert not uplink.has_room(1, 1000, 0)
    assert uplink.has_room(1000, 1000, 0)
    assert not uplink.congested(2 * S_NS)


def test_the_part_of_the_upload_that_was_used() -> None:
    uplink = limited()
    uplink.pass_on([data(5000)], 0)
    assert uplink.used(S_NS) == 0.5
    assert uplink.used(S_NS) == 0.0


def test_peers_whose_links_are_full_are_known() -> None:
    uplink = Uplink(SearchConfig())
    uplink.queue_changed(ANN.node, high=True)
    uplink.queue_changed(ANN.node, high=True)
    assert list(uplink.stuck) == [ANN.node]
    uplink.queue_changed(ANN.node, high=False)
    uplink.queue_changed(ANN.node, high=False)
    assert not uplink.stuck
