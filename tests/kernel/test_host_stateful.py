"""Random claims, releases and accidents: what a machine was told always agrees with what is.

A Claimant keeps the view that any machine could keep from its own effects and inputs. The test
plays the network: dials that succeed, fail or lose against the peer's own, links that break.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shoal.base.ids import Contact, NodeId
from shoal.base.units import S_NS
from shoal.kernel.effects import CloseLink, Effect, OpenLink, Send
from shoal.kernel.fake_host import FakeHost
from shoal.kernel.host import HOST, HostLimits
from shoal.kernel.inputs import (
    CommandIssued,
    Input,
    LinkClosed,
    LinkFailed,
    LinkOpened,
)
from tests.support.machines import Echo, Note, Other, peer_id

ME = peer_id(99)
PEERS = [peer_id(n) for n in range(3)]
PURPOSES = ["left", "right"]
LIMITS = HostLimits(parked_ns=10 * S_NS, parked_links_max=2, soft_links_max=1)
ACCEPTS = [(Note,), (Echo,), (Other,)]

peers = st.sampled_from(PEERS)
purposes = st.sampled_from(PURPOSES)
slots = st.integers(0, len(ACCEPTS) - 1)
opens = st.builds(OpenLink, peers.map(Contact), purposes, st.booleans())
closes = st.builds(CloseLink, peers, purposes)
sends = st.builds(lambda peer: Send(Note(0), (peer,)), peers)
commands = st.lists(st.one_of(opens, opens, closes, sends), min_size=1, max_size=4)

Wanted = tuple[NodeId, str]


class Claimant:
    """What a machine believes of its claims: asked for, open, or (not in here) none."""

    def __init__(self, accepts: tuple[type, ...]) -> None:
        self.accepts = accepts
        self.asked: dict[Wanted, None] = {}
        self.open: dict[Wanted, None] = {}
        self.returned: list[Any] = []
        self.evicted: dict[Wanted, int] = {}
        """How many evictions we have not been told of yet."""

    def handle(self, event: Input, now_ns: int) -> Sequence[Effect]:
        match event:
            case CommandIssued(effects):
                return list(effects)
            case LinkOpened(peer, purpose):
                assert (peer, purpose) in self.asked, "told of a link that nobody asked for"
                del self.asked[peer, purpose]
                self.open[peer, purpose] = None
            case LinkClosed(peer, purpose):
                self._gone((peer, purpose), was_open=True)
            case LinkFailed(peer, purpose, _, unsent):
                self.returned.extend(unsent)
                self._gone((peer, purpose), was_open=bool(unsent))
        return ()

    def check_invariants(self) -> None:
        """The rules of HostWalk say what must be true."""

    def wish(self, effect: OpenLink | CloseLink) -> None:
        """An effect of ours is carried out."""
        match effect:
            case OpenLink(contact, purpose):
                self.asked[contact.node, purpose] = None
            case CloseLink(peer, purpose):
                self.asked.pop((peer, purpose), None)
                self.open.pop((peer, purpose), None)

    def evict(self, peer: NodeId) -> None:
        """Our claims on this peer end now; we hear of it behind the effects under way."""
        for wanted in {**self.asked, **self.open}:
            if wanted[0] == peer:
                self.asked.pop(wanted, None)
                self.open.pop(wanted, None)
                self.evicted[wanted] = self.evicted.get(wanted, 0) + 1

    def _gone(self, wanted: Wanted, *, was_open: bool) -> None:
        if self.evicted.get(wanted, 0):
            self.evicted[wanted] -= 1
            return
        if was_open:
            assert wanted in self.open, "closed, but never opened"
        else:
            assert wanted in self.asked, "failed, but never asked for"
        self.open.pop(wanted, None)
        self.asked.pop(wanted, None)


class Network(FakeHost):
    """The fake, with connections that can be counted."""

    def __init__(self, machines: Sequence[Claimant]) -> None:
        super().__init__(ME, machines, LIMITS)
        self.claimants = machines
        self.up: dict[NodeId, None] = {}
        self.dials: list[NodeId] = []

    def dial(self, contact: Contact) -> None:
        assert contact.node not in self.up, "dialled a peer that is linked"
        self.dials.append(contact.node)

    def hang_up(self, peer: NodeId) -> None:
        del self.up[peer]

    def _open_link(self, slot: int, effect: OpenLink) -> None:
        self.claimants[slot].wish(effect)
        super()._open_link(slot, effect)

    def _close_link(self, slot: int, effect: CloseLink) -> None:
        self.claimants[slot].wish(effect)
        super()._close_link(slot, effect)

    def _evict(self) -> None:
        for peer in self.links.excess_soft():
            for claimant in self.claimants:
                claimant.evict(peer)
        super()._evict()

    def connect(self, peer: NodeId) -> None:
        if peer not in self.up:  # one connection per peer is enough
            self.up[peer] = None
            self.link_opened(peer)


class HostWalk(RuleBasedStateMachine):
    """Every interleaving of wishes and accidents that Hypothesis can think of."""

    def __init__(self) -> None:
        super().__init__()
        self.machines = [Claimant(accepts) for accepts in ACCEPTS]
        self.host = Network(self.machines)
        self.host.start()

    # Wishes

    @rule(slot=slots, effects=commands)
    def wish(self, slot: int, effects: list[Effect]) -> None:
        self.host.command(self.machines[slot], effects)

    # Accidents

    @precondition(lambda self: self.host.dials)
    @rule(data=st.data())
    def dial_succeeds(self, data: st.DataObject) -> None:
        self.host.connect(self._finish_dial(data))

    @precondition(lambda self: self.host.dials)
    @rule(data=st.data())
    def dial_fails(self, data: st.DataObject) -> None:
        self.host.dial_failed(self._finish_dial(data), "refused")

    @rule(peer=peers)
    def peer_dials(self, peer: NodeId) -> None:
        self.host.connect(peer)

    @precondition(lambda self: self.host.up)
    @rule(data=st.data(), unsent=st.lists(slots, max_size=3))
    def link_breaks(self, data: st.DataObject, unsent: list[int]) -> None:
        peer = data.draw(st.sampled_from(list(self.host.up)))
        del self.host.up[peer]
        lost = [(slot, Note(number)) for number, slot in enumerate(unsent)]
        claimants = self.host.links.claimants(peer)
        self.host.link_closed(peer, "reset", lost)
        for slot, machine in enumerate(self.machines):
            due = [message for sender, message in lost if sender == slot]
            assert machine.returned == (due if slot in claimants else [])
            machine.returned.clear()

    @precondition(lambda self: self.host.up)
    @rule(data=st.data())
    def message_comes_in(self, data: st.DataObject) -> None:
        self.host.received(data.draw(st.sampled_from(list(self.host.up))), Note(1))

    @rule(duration_s=st.sampled_from([1, 5, 11]))
    def time_passes(self, duration_s: int) -> None:
        self.host.advance(duration_s * S_NS)

    def _finish_dial(self, data: st.DataObject) -> NodeId:
        dials = self.host.dials
        return dials.pop(data.draw(st.integers(0, len(dials) - 1)))

    # What must be true after each of them

    @invariant()
    def the_table_knows_the_connections(self) -> None:
        for peer in PEERS:
            assert self.host.links.is_up(peer) == (peer in self.host.up)
            if peer in self.host.links and peer not in self.host.up:
                assert peer in self.host.dials, "waits for a dial that nobody makes"

    @invariant()
    def every_view_is_true(self) -> None:
        for peer in PEERS:
            believers = [
                slot
                for slot, machine in enumerate(self.machines)
                if any((peer, purpose) in {**machine.asked, **machine.open} for purpose in PURPOSES)
            ]
            assert sorted(self.host.links.claimants(peer)) == believers
        for machine in self.machines:
            assert all(peer in self.host.up for peer, _ in machine.open)
            assert not any(peer in self.host.up for peer, _ in machine.asked), "never answered"
            assert not any(machine.evicted.values()), "never told of an eviction"

    @invariant()
    def soft_links_stay_below_the_cap(self) -> None:
        assert len(self.host.links.soft) <= LIMITS.soft_links_max

    @invariant()
    def idle_links_are_parked(self) -> None:
        idle = [peer for peer in self.host.up if not self.host.links.is_claimed(peer)]
        assert set(self.host.links.parked) == set(idle)
        assert len(idle) <= LIMITS.parked_links_max
        for peer in idle:
            assert (HOST, peer) in self.host.timers

    def teardown(self) -> None:
        """Without claims, and after parking, nothing is left."""
        for machine in self.machines:
            gone = [CloseLink(*wanted) for wanted in {**machine.asked, **machine.open}]
            self.host.command(machine, gone)
        while self.host.dials:
            self.host.connect(self.host.dials.pop())
        self.host.advance(2 * LIMITS.parked_ns)
        assert not self.host.up
        assert not any(peer in self.host.links for peer in PEERS)
        assert not self.host.timers


TestHostWalk = HostWalk.TestCase
TestHostWalk.settings = settings(max_examples=150, stateful_step_count=40)
