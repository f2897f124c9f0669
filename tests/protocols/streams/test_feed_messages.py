"""Announcements instead of messages: what is sent, asked for and answered, and what a neighbour
that lies can and cannot do with it."""

from __future__ import annotations

from shoal.base.ids import NodeId
from shoal.base.units import KIB, MS_NS, S_NS, US_NS
from shoal.identity.message_body import Position
from shoal.kernel.effects import Effect, Send, Verify
from shoal.kernel.records import ReceivedAgain, ReceivedFirst, Rejected, Sent
from shoal.protocols.streams.commands import JoinStream, LeaveStream, Publish
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.delivery.chain_feeds import LATE_IN_A_ROW
from shoal.protocols.streams.delivery.flooding import LOOKED_THROUGH
from shoal.protocols.streams.delivery.gap_repair import WANTS_BURST_KIB
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.messages import (
    Announce,
    Feed,
    Flood,
    Head,
    Heads,
    Want,
)
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    DAVE,
    EVE,
    ME,
    NOW_MS,
    STREAM,
    TRACKER,
    Bench,
    body_of,
    flood_of,
    instruction,
    link_stream,
    message_id,
    of_kind,
    ready_node,
    reasons,
    sent,
)

CHAIN = (CAROL, 0, "c")
INTERVAL_NS = 10 * MS_NS


def head(number: int) -> Head:
    return CHAIN, (NOW_MS + number, 0)


def flood(number: int, content: bytes = b"{}", signer: NodeId | None = None) -> Flood:
    """Message so many of Carol's."""
    id = message_id(timestamp_ms=NOW_MS + number)
    previous = Position(NOW_MS + number - 1, 0) if number > 1 else None
    return flood_of(body_of(id, content, previous), signer=signer)


class Home:
    """A node that has Alice, Bob and Dave as neighbours."""

    def __init__(self, redundant: int | None = 0, config: NodeConfig | None = None) -> None:
        self.bench: Bench[StreamNode] = ready_node(config)
        self.bench.command(JoinStream(STREAM, True, redundant_feeds=redundant))
        link_stream(self.bench, STREAM, ALICE, BOB, DAVE)
        self.number = 0

    def come(self, *peers: NodeId, content: bytes = b"{}") -> list[Effect]:
        """The next message of Carol's comes from each of these."""
        self.number += 1
        self.bench.now_ns += INTERVAL_NS
        effects: list[Effect] = []
        for peer in peers:
            effects += self.bench.flood(peer, flood(self.number, content))
        return effects

    def settle(self) -> None:
        """Until Alice feeds Carol's chain, and Bob and Dave tell its names."""
        for _ in range(LATE_IN_A_ROW):
            self.come(ALICE, BOB, DAVE)

    def announce(self, peer: NodeId, number: int) -> list[Effect]:
        return self.bench.receive(peer, Announce(STREAM, head(number)))


def wants(effects: list[Effect]) -> list[tuple[NodeId, ...]]:
    return [peers for _, peers in sent(effects, Want)]


# To neighbours that want names


def test_whoever_wants_names_only_is_told_the_name_and_the_others_get_the_message() -> None:
    home = Home(redundant=None)
    home.come(ALICE)
    home.bench.receive(BOB, Feed(STREAM, (CHAIN,), False))
    effects = home.come(ALICE)
    assert sent(effects, Announce) == [(Announce(STREAM, head(2)), (BOB,))]
    assert [peers for _, peers in sent(effects, Flood)] == [(DAVE,)]
    assert of_kind(effects, Sent) == [Sent(message_id(timestamp_ms=NOW_MS + 2), 1)]
    home.bench.receive(BOB, Feed(STREAM, (CHAIN,), True))
    assert [peers for _, peers in sent(home.come(ALICE), Flood)] == [(BOB, DAVE)]


def test_own_messages_are_announced_too() -> None:
    home = Home()
    home.bench.command(Publish(STREAM, b"one", 0))
    home.bench.receive(BOB, Feed(STREAM, ((ME, 0, "c1"),), False))
    effects = home.bench.command(Publish(STREAM, b"two", 0))
    (announce,) = sent(effects, Announce)
    assert announce[1] == (BOB,)
    (message,) = sent(effects, Flood)
    assert message[1] == (ALICE, DAVE)
    assert sent(home.bench.receive(BOB, Want(STREAM, announce[0].head))) == [
        (Flood(0, 0, home.bench.now_ns // US_NS, message[0].signed), (BOB,))
    ]


def test_whoever_brings_us_our_own_messages_is_asked_for_names() -> None:
    home = Home(redundant=1)
    effects: list[Effect] = []
    for number in range(LATE_IN_A_ROW):
        said = home.bench.command(Publish(STREAM, b"%d" % number, 0))
        effects = home.bench.receive(DAVE, sent(said, Flood)[0][0])
    assert sent(effects) == [(Feed(STREAM, ((ME, 0, "c1"),), False), (DAVE,))]


def test_what_is_wanted_is_sent_and_what_follows_too() -> None:
    home = Home(redundant=None)
    home.come(ALICE)
    home.bench.receive(BOB, Feed(STREAM, (CHAIN,), False))
    home.come(ALICE)
    answer = sent(home.bench.receive(BOB, Want(STREAM, head(2))))
    assert [(message.signed, peers) for message, peers in answer] == [(flood(2).signed, (BOB,))]
    assert [peers for _, peers in sent(home.come(ALICE), Flood)] == [(BOB, DAVE)]


def test_a_link_that_ends_is_forgotten_with_what_was_agreed() -> None:
    home = Home(redundant=None)
    home.come(ALICE)
    home.bench.receive(BOB, Feed(STREAM, (CHAIN,), False))
    home.bench.link_down(BOB)
    assert not home.bench.machine.streams[STREAM].channel.feeds.names_only


def test_a_neighbour_that_is_leaving_changes_nothing() -> None:
    home = Home()
    home.settle()
    home.bench.receive(TRACKER, instruction(2, ALICE, DAVE))
    channel = home.bench.machine.streams[STREAM].channel
    assert BOB in channel.neighbours
    assert BOB not in channel.active
    home.bench.receive(BOB, Feed(STREAM, (CHAIN,), False))
    assert not channel.feeds.names_only
    assert sent(home.bench.receive(BOB, Want(STREAM, head(1))), Flood)
    assert of_kind(home.come(ALICE, BOB), ReceivedAgain)
    assert home.announce(BOB, home.number + 1) == [
        Send(Want(STREAM, head(home.number + 1)), (BOB,))
    ]
    assert all(BOB not in arrivals.late for arrivals in channel.feeds._chains.values())
    assert not any(arrivals.asked for arrivals in channel.feeds._chains.values())


# From neighbours that hold back


def test_the_late_are_asked_once_for_names_and_nobody_waits_for_it() -> None:
    home = Home()
    for _ in range(LATE_IN_A_ROW - 1):
        assert not sent(home.come(ALICE, BOB, DAVE), Feed)
    asked = sent(home.come(ALICE, BOB, DAVE), Feed)
    hold_back = Feed(STREAM, (CHAIN,), False)
    assert asked == [(hold_back, (BOB,)), (hold_back, (DAVE,))]


def test_nobody_is_asked_for_names_where_all_are_to_feed() -> None:
    home = Home(redundant=None)
    for _ in range(50):
        assert not sent(home.come(ALICE, BOB, DAVE), Feed)


def test_an_announcement_of_what_is_there_costs_nothing() -> None:
    home = Home()
    home.settle()
    home.come(ALICE)
    assert home.announce(BOB, home.number) == []


def test_what_was_lost_is_asked_for_with_the_first_announcement_and_each_that_follows() -> None:
    home = Home()
    home.settle()
    lost = home.number + 1
    assert home.announce(BOB, lost) == [Send(Want(STREAM, head(lost)), (BOB,))]
    assert wants(home.announce(DAVE, lost)) == [(DAVE,)]  # Bob may be lying
    assert of_kind(home.come(BOB), ReceivedFirst)
    assert home.announce(DAVE, lost) == []


def test_a_gap_has_everybody_feed_again() -> None:
    home = Home()
    home.settle()
    home.come()  # lost
    assert sent(home.come(ALICE), Feed) == [(Feed(STREAM, (CHAIN,), True), (BOB, DAVE))]


def test_a_chain_that_went_on_elsewhere_has_everybody_feed_again() -> None:
    home = Home()
    home.settle()
    effects = home.bench.receive(BOB, Heads(STREAM, (head(home.number + 1),)))
    assert sent(effects, Feed) == [(Feed(STREAM, (CHAIN,), True), (BOB, DAVE))]


def test_a_lost_feed_has_everybody_feed_again() -> None:
    home = Home()
    home.settle()
    resume = Feed(STREAM, (CHAIN,), True)
    assert sent(home.bench.link_down(ALICE), Feed) == [(resume, (BOB,)), (resume, (DAVE,))]


def test_what_is_being_checked_is_not_asked_for() -> None:
    home = Home()
    home.settle()
    good = flood(home.number + 1)
    checks = home.bench.receive(ALICE, good)
    assert home.announce(BOB, home.number + 1) == []
    assert not wants(home.bench.answer_verifies(checks))


def test_what_turned_out_to_be_forged_is_asked_for_then() -> None:
    home = Home()
    home.settle()
    checks = home.bench.receive(ALICE, flood(home.number + 1, signer=EVE))
    assert home.announce(BOB, home.number + 1) == []
    effects = home.bench.answer_verifies(checks)
    assert reasons(effects) == ["bad-signature"]
    assert wants(effects) == [(BOB,)]


def test_a_stream_that_was_left_meanwhile_is_asked_for_nothing() -> None:
    home = Home()
    home.settle()
    checks = home.bench.receive(ALICE, flood(home.number + 1, signer=EVE))
    home.announce(BOB, home.number + 1)
    home.bench.command(LeaveStream(STREAM))
    assert not sent(home.bench.answer_verifies(checks), Want)


def test_a_node_that_never_asked_for_names_asks_for_what_it_lacks_all_the_same() -> None:
    # It may have asked before it started anew, and its neighbour has not noticed.
    home = Home(redundant=None)
    effects = home.announce(BOB, 1)
    assert wants(effects) == [(BOB,)]
    assert reasons(effects) == ["unasked-announce"]


# Neighbours that lie


def test_strangers_are_not_heard() -> None:
    home = Home()
    for message in (
        Announce(STREAM, head(1)),
        Want(STREAM, head(1)),
        Feed(STREAM, (CHAIN,), False),
    ):
        assert home.bench.receive(EVE, message) == [Rejected(EVE, "not-a-neighbour")]


def test_a_chain_that_nobody_has_heard_of_is_not_remembered() -> None:
    home = Home(redundant=None)
    home.come(ALICE)
    made_up = tuple((EVE, 0, f"{number}") for number in range(200))
    effects = home.bench.receive(BOB, Feed(STREAM, (*made_up, CHAIN), False))
    assert reasons(effects) == ["unknown-chain"]
    assert home.bench.receive(BOB, Feed(STREAM, made_up, True)) == []  # we might have forgotten
    assert home.bench.machine.streams[STREAM].channel.feeds.names_only == {CHAIN: {BOB}}


def test_made_up_names_cost_one_small_question_each_and_leave_nothing_behind() -> None:
    home = Home()
    home.settle()
    feeds = home.bench.machine.streams[STREAM].channel.feeds
    before = len(feeds._chains)
    for number in range(500):
        made_up = Announce(STREAM, ((EVE, 0, f"{number}"), (NOW_MS + 1, 0)))
        effects = home.bench.receive(BOB, made_up)
        assert wants(effects) == [(BOB,)]
        assert reasons(effects) == ["unasked-announce"]
    assert len(feeds._chains) == before
    assert of_kind(home.come(ALICE), ReceivedFirst)


def test_whoever_announces_and_never_sends_is_counted_and_delays_nobody() -> None:
    home = Home()
    home.settle()
    counted: list[str] = []
    for _ in range(1000):
        counted += reasons(home.announce(BOB, home.number + 1))
        assert wants(home.announce(DAVE, home.number + 1)) == [(DAVE,)]
        assert of_kind(home.come(DAVE), ReceivedFirst)
    assert set(counted) == {"announced-not-sent"}
    assert 1 <= len(counted) <= 1000 * INTERVAL_NS // S_NS


def test_wants_are_answered_within_bounds() -> None:
    home = Home(redundant=None)
    home.come(ALICE, content=bytes(10 * KIB))
    answers = [home.bench.receive(BOB, Want(STREAM, head(1))) for _ in range(1000)]
    assert sum(len(sent(effects, Flood)) for effects in answers) == WANTS_BURST_KIB // 11
    assert reasons(answers[-1]) == ["too-many-wants"]
    # That is Bob's own affair: he and the others get what is new, and Dave what he wants.
    assert [peers for _, peers in sent(home.come(ALICE), Flood)] == [(BOB, DAVE)]
    assert sent(home.bench.receive(DAVE, Want(STREAM, head(1))), Flood)
    home.bench.now_ns += 1 * S_NS
    assert sent(home.bench.receive(BOB, Want(STREAM, head(1))), Flood)


def test_a_want_of_what_was_never_there_is_counted() -> None:
    home = Home()
    home.come(ALICE)
    assert home.bench.receive(BOB, Want(STREAM, head(2))) == [Rejected(BOB, "unknown-want")]


def test_only_the_last_that_are_being_checked_are_looked_through() -> None:
    # Or a neighbour could have us look through a thousand for each name that it makes up.
    home = Home()
    home.settle()
    home.bench.receive(ALICE, flood(home.number + 1))
    for number in range(LOOKED_THROUGH):
        assert not wants(home.announce(BOB, home.number + 1))
        body = body_of(message_id(timestamp_ms=NOW_MS + 100, chain=f"{number}"))
        assert of_kind(home.bench.receive(DAVE, flood_of(body)), Verify)
    assert wants(home.announce(BOB, home.number + 1)) == [(BOB,)]
