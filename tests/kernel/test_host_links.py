"""Links as machines see them: claimed, shared, parked, evicted."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.base.ids import Contact, NodeId
from shoal.base.units import S_NS
from shoal.kernel.effects import CloseLink, Effect, OpenLink, Send
from shoal.kernel.fake_host import FakeHost
from shoal.kernel.host import HOST, HostLimits
from shoal.kernel.inputs import Input, LinkClosed, LinkFailed, LinkOpened, MessageReceived
from shoal.kernel.records import LinkDown, LinkUp, Undeliverable
from tests.support.machines import Echo, Note, Scripted, peer_id

ME, A, B, C = (peer_id(n) for n in range(1, 5))
PARKED_NS = 10 * S_NS
LIMITS = HostLimits(parked_ns=PARKED_NS, parked_links_max=2, soft_links_max=2)


def two_machines() -> tuple[FakeHost, Scripted, Scripted]:
    first, second = Scripted((Note,)), Scripted((Echo,))
    return FakeHost(ME, [first, second], LIMITS), first, second


def claim(peer: NodeId, purpose: str = "x", *, soft: bool = False) -> OpenLink:
    return OpenLink(Contact(peer), purpose, soft)


# Claims


def test_one_connection_serves_every_machine() -> None:
    host, first, second = two_machines()
    host.command(first, [claim(A, "one")])
    host.command(second, [claim(A, "two")])
    assert host.dialled == [Contact(A)]
    assert first.heard() == second.heard() == []
    host.link_opened(A)
    assert first.heard() == [LinkOpened(A, "one")]
    assert second.heard() == [LinkOpened(A, "two")]


def test_a_claim_on_a_link_that_is_up_is_told_once() -> None:
    host, first, second = two_machines()
    host.command(first, [claim(A)])
    host.link_opened(A)
    host.command(second, [claim(A, "two")])
    host.command(second, [claim(A, "three")])
    assert host.dialled == [Contact(A)]
    assert first.heard() == [LinkOpened(A, "x")]
    assert second.heard() == [LinkOpened(A, "two"), LinkOpened(A, "three")]


def test_a_claim_asked_for_again_is_answered_again() -> None:
    host, first, _ = two_machines()
    host.command(first, [claim(A)])
    host.command(first, [claim(A)])
    host.link_opened(A)
    assert first.heard() == [LinkOpened(A, "x")], "one answer while it is dialled"
    host.command(first, [claim(A)])
    assert first.heard() == [LinkOpened(A, "x")] * 2
    host.link_closed(A, "gone")
    assert first.heard()[2:] == [LinkClosed(A, "x", "gone")], "it is one claim all the same"


def test_a_claim_given_back_at_once_is_not_told() -> None:
    host, first, _ = two_machines()
    host.link_opened(A)
    host.command(first, [claim(A), CloseLink(A, "x")])
    assert first.heard() == []


def test_a_claim_given_back_and_asked_for_again_is_told_once() -> None:
    host, first, _ = two_machines()
    host.link_opened(A)
    host.command(first, [claim(A), CloseLink(A, "x"), claim(A)])
    assert first.heard() == [LinkOpened(A, "x")]


def test_a_machine_may_give_a_second_claim_back_when_told_of_the_first() -> None:
    def react(event: Input) -> Sequence[Effect]:
        return [CloseLink(A, "two")] if event == LinkOpened(A, "one") else ()

    machine = Scripted(react=react)
    host = FakeHost(ME, [machine], LIMITS)
    host.command(machine, [claim(A, "one"), claim(A, "two")])
    host.link_opened(A)
    assert machine.heard() == [LinkOpened(A, "one")]


def test_messages_may_come_before_the_claim() -> None:
    """An inbound link carries the very message that makes a machine claim it."""

    def react(event: Input) -> Sequence[Effect]:
        return [claim(event.peer)] if isinstance(event, MessageReceived) else ()

    machine = Scripted(react=react)
    host = FakeHost(ME, [machine], LIMITS)
    host.link_opened(A)
    host.received(A, Note(1))
    assert machine.heard() == [MessageReceived(A, Note(1)), LinkOpened(A, "x")]
    assert host.dialled == []


# Releases


def test_a_link_is_parked_and_then_hung_up_after_its_last_release() -> None:
    host, first, second = two_machines()
    host.command(first, [claim(A)])
    host.command(second, [claim(A)])
    host.link_opened(A)
    host.command(first, [CloseLink(A, "x")])
    host.advance(2 * PARKED_NS)
    assert host.hung_up == [], "the second machine still wants it"
    host.command(second, [CloseLink(A, "x")])
    host.advance(PARKED_NS - 1)
    assert host.hung_up == []
    host.advance(1)
    assert host.hung_up == [A]
    assert host.records == [LinkUp(A), LinkDown(A, "unclaimed")]
    assert first.heard() == second.heard() == [LinkOpened(A, "x")], "nobody is told"


def test_a_purpose_is_released_for_itself() -> None:
    host, first, _ = two_machines()
    host.command(first, [claim(A, "one"), claim(A, "two")])
    host.link_opened(A)
    host.command(first, [CloseLink(A, "one"), CloseLink(A, "never claimed")])
    host.advance(2 * PARKED_NS)
    assert host.hung_up == []
    host.link_closed(A, "gone")
    assert first.heard(LinkClosed) == [LinkClosed(A, "two", "gone")]


def test_a_parked_link_that_is_claimed_in_time_stays() -> None:
    host, first, _ = two_machines()
    host.link_opened(A)
    host.advance(PARKED_NS - 1)
    host.command(first, [claim(A)])
    host.advance(10 * PARKED_NS)
    assert host.hung_up == []
    assert first.heard() == [LinkOpened(A, "x")]


def test_an_inbound_link_that_nobody_claims_is_hung_up() -> None:
    host, first, _ = two_machines()
    host.link_opened(A)
    host.advance(PARKED_NS)
    assert host.hung_up == [A]
    assert first.heard() == []
    assert A not in host.links


def test_parking_starts_anew_with_every_release() -> None:
    host, first, _ = two_machines()
    host.link_opened(A)
    for _ in range(3):
        host.advance(PARKED_NS - 1)
        host.command(first, [claim(A), CloseLink(A, "x")])
    assert host.hung_up == []
    host.advance(PARKED_NS)
    assert host.hung_up == [A]


def test_a_link_that_closed_while_parked_is_not_hung_up_when_it_is_back() -> None:
    host, first, _ = two_machines()
    host.link_opened(A)
    host.advance(PARKED_NS // 2)
    host.link_closed(A, "gone")
    host.command(first, [claim(A)])
    host.link_opened(A)
    host.advance(PARKED_NS)
    assert host.hung_up == []


def test_a_claim_released_while_dialling_is_not_told_and_the_link_is_parked() -> None:
    host, first, _ = two_machines()
    host.command(first, [claim(A), CloseLink(A, "x")])
    assert host.dialled == [Contact(A)]
    host.link_opened(A)
    assert first.heard() == []
    host.advance(PARKED_NS)
    assert host.hung_up == [A]


def test_a_claim_released_and_renewed_while_dialling_needs_one_dial() -> None:
    host, first, _ = two_machines()
    host.command(first, [claim(A), CloseLink(A, "x"), claim(A)])
    assert host.dialled == [Contact(A)]
    host.dial_failed(A, "refused")
    assert first.heard() == [LinkFailed(A, "x", "refused")]


# Too many that nobody wants


def test_of_too_many_parked_links_the_oldest_goes() -> None:
    host, first, _ = two_machines()
    for peer in (A, B, C):
        host.link_opened(peer)
    assert host.hung_up == [A]
    assert host.records[-1] == LinkDown(A, "crowded-out")
    assert (HOST, A) not in host.timers
    host.command(first, [claim(B)])
    host.link_opened(A)
    assert host.hung_up == [A], "B is wanted now, and counts no more"
    host.command(first, [CloseLink(B, "x")])
    assert host.hung_up == [A, C], "B has begun to wait once more: C is the oldest"
    host.advance(PARKED_NS)
    assert host.hung_up == [A, C, A, B]


def test_a_parked_link_that_is_gone_makes_room() -> None:
    host, _, _ = two_machines()
    host.link_opened(A)
    host.link_closed(A, "gone")
    host.link_opened(B)
    host.link_opened(C)
    assert host.hung_up == []


# Failures


def test_a_failed_dial_is_told_to_every_claimant() -> None:
    host, first, second = two_machines()
    host.command(first, [claim(A, "one")])
    host.command(second, [claim(A, "two")])
    host.dial_failed(A, "timeout")
    assert first.heard() == [LinkFailed(A, "one", "timeout")]
    assert second.heard() == [LinkFailed(A, "two", "timeout")]
    host.command(first, [claim(A, "one")])
    assert host.dialled == [Contact(A)] * 2, "the claim is gone: a new one dials again"


def test_a_failed_dial_is_harmless_once_the_peer_has_dialled_us() -> None:
    host, first, _ = two_machines()
    host.command(first, [claim(A)])
    host.link_opened(A)
    host.dial_failed(A, "timeout")
    host.command(first, [Send(Note(1), (A,))])
    assert first.heard() == [LinkOpened(A, "x")]
    assert host.sent == [(A, Note(1))]


def test_a_broken_link_takes_its_claims_with_it() -> None:
    host, first, second = two_machines()
    host.command(first, [claim(A)])
    host.command(second, [claim(A)])
    host.link_opened(A)
    host.link_closed(A, "reset")
    assert first.heard() == second.heard() == [LinkOpened(A, "x"), LinkClosed(A, "x", "reset")]
    host.command(first, [Send(Note(1), (A,)), claim(A)])
    assert host.records[-1] == Undeliverable(A)
    assert host.dialled == [Contact(A)] * 2


def test_what_was_not_sent_comes_back() -> None:
    host, first, second = two_machines()
    host.command(first, [claim(A)])
    host.command(second, [claim(A)])
    host.link_opened(A)
    host.link_closed(A, "too-slow", unsent=[(0, Note(1)), (0, Note(2))])
    assert first.heard(LinkFailed) == [LinkFailed(A, "x", "too-slow", (Note(1), Note(2)))]
    assert second.heard(LinkClosed) == [LinkClosed(A, "x", "too-slow")]


# Soft claims


def test_soft_links_above_the_cap_are_evicted_and_told_so() -> None:
    host, first, second = two_machines()
    for peer in (A, B):
        host.command(first, [claim(peer, soft=True)])
        host.link_opened(peer)
    host.command(second, [claim(A, "also", soft=True)])
    host.command(second, [claim(C, soft=True)])
    assert host.hung_up == [B], "A was claimed again meanwhile"
    assert first.heard(LinkClosed) == [LinkClosed(B, "x", "evicted")]
    assert second.heard(LinkClosed) == []
    assert LinkDown(B, "evicted") in host.records


def test_a_message_makes_a_soft_link_recent() -> None:
    host, first, _ = two_machines()
    for peer in (A, B):
        host.command(first, [claim(peer, soft=True)])
        host.link_opened(peer)
    host.command(first, [Send(Note(1), (A,)), claim(C, soft=True)])
    assert host.hung_up == [B]


def test_a_soft_link_that_is_still_dialled_fails_when_evicted() -> None:
    host, first, _ = two_machines()
    host.command(first, [claim(A, soft=True), claim(B, soft=True), claim(C, soft=True)])
    assert first.heard() == [LinkFailed(A, "x", "evicted")]
    assert host.hung_up == [], "there is nothing to hang up yet"
    assert host.records == [], "and no link went down"
    host.link_opened(A)
    host.advance(PARKED_NS)
    assert host.hung_up == [A], "it came up all the same, and nobody wants it"


def test_a_hard_claim_keeps_a_link_from_being_evicted() -> None:
    host, first, second = two_machines()
    host.command(first, [claim(A, soft=True)])
    host.command(second, [claim(A, "hard")])
    host.command(first, [claim(B, soft=True), claim(C, soft=True)])
    assert first.heard(LinkFailed) == []
    host.command(second, [CloseLink(A, "hard")])
    assert first.heard(LinkFailed) == [LinkFailed(B, "x", "evicted")], "A was used last of all"


def test_a_claim_can_turn_hard() -> None:
    host, first, _ = two_machines()
    host.command(first, [claim(A, soft=True), claim(A, soft=False)])
    host.command(first, [claim(B, soft=True), claim(C, soft=True)])
    assert first.heard(LinkFailed) == []
