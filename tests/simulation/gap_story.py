"""A stream of which one member misses something, and two storage nodes, good or bad.

Storage nodes are outside the overlay here, so that nothing is filled by them as neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from shoal.base.ids import Contact, StreamId
from shoal.base.units import S_NS
from shoal.identity import PrivateKey, SeededEntropy
from shoal.identity.message_body import decode_body
from shoal.kernel.effects import Effect, OpenLink, Send
from shoal.kernel.inputs import Input, MessageReceived
from shoal.kernel.machine import Machine
from shoal.kernel.records import GapAbandoned
from shoal.protocols.streams.commands import JoinStream, MessageArrived, Publish, PublishAccepted
from shoal.protocols.streams.history.client import HistoryClient
from shoal.protocols.streams.history.messages import EVERYTHING, QUESTIONS, Heard, Rows
from shoal.protocols.streams.history.read_plan import cursor_of
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.member.tracker_selection import TrackerRing
from shoal.protocols.streams.messages import Flood
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.protocols.streams.tracker.tracker import Tracker
from shoal.protocols.streams.wire import HistoryCodec, StreamsCodec
from shoal.sim import RegionDelay, SimNode, Simulation, load_table
from shoal.sim.checkers import DeliveredOnce, MachineInvariants
from shoal.sim.faults import _Cut
from shoal.sim.links import Frame, LinkEnd, Shaper
from shoal.sim.trace import Row
from tests.support.history import Keeper

STREAM = StreamId("0xowner/city/vehicles")
MEMBERS = 8
RUNS = 6
SILENT = "silent"
AWAY = "away"
EMPTY = "empty"
LYING = "lying"


class KeeperNode:
    """The machine of a storage node, with a keeper's answers."""

    accepts = QUESTIONS

    def __init__(
        self, keeper: Keeper, how: str, storage: Callable[[], Sequence[Contact]] = tuple
    ) -> None:
        """An answer speaks for all storage nodes."""
        self._keeper = keeper
        self._storage = storage
        self._how = how

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        if not isinstance(event, MessageReceived) or self._how == SILENT:
            return []
        answer = self._keeper.answer(event.message)
        if isinstance(answer, Rows):
            heard = tuple([Heard(contact.node, EVERYTHING) for contact in self._storage()])
            answer = msgspec.structs.replace(answer, heard=heard)
        if self._how == LYING:
            forged = tuple(bytes(65) + signed[65:] for signed in answer.rows)
            answer = type(answer)(answer.request, forged, answer.next)
        # Whoever is asked claims the link too, or it would be closed as unclaimed.
        claim = OpenLink(Contact(event.peer), "answers")
        return [claim, Send(answer, (event.peer,))]

    def check_invariants(self) -> None:
        """There is nothing to break."""


class NoData(Shaper):
    """One node gets no stream messages for a while; all else comes through."""

    keeps_order = True

    def __init__(self, victim: SimNode) -> None:
        self.victim = victim

    def cuts(self, a: Any, b: Any) -> bool:
        return False

    def shape(self, end: LinkEnd, frame: Frame, arrivals_ns: list[int]) -> list[int]:
        is_data = isinstance(frame.message, Flood)
        return [] if is_data and end.peer == self.victim.id else arrivals_ns


class Story:
    """Some members, of whom the last one misses something, and two storage nodes."""

    def __init__(
        self, seed: int, storage: tuple[str, str], *, members: int = MEMBERS, page_rows: int = 3
    ) -> None:
        self.simulation = Simulation(
            seed,
            RegionDelay(load_table("aws")),
            codecs=[StreamsCodec(), HistoryCodec()],
            checkers=[MachineInvariants(), DeliveredOnce()],
        )
        entropy = SeededEntropy(seed)
        self._page_rows = page_rows
        self.kept: list[bytes] = []
        self.delivered: list[tuple[bytes, bool]] = []
        self.abandoned = 0
        self.simulation.trace.to(self._rows)
        tracker = PrivateKey.generate(entropy)
        self._ring = TrackerRing([Contact(tracker.address)])
        self.members = [self._member(PrivateKey.generate(entropy)) for _ in range(members)]
        self.fresh = [self._member(PrivateKey.generate(entropy)) for _ in range(MEMBERS)]
        self.late = self.members[-1]
        self.late.listeners.append(self._told)
        contacts = []
        for how in storage:
            id = PrivateKey.generate(entropy).address
            contacts.append(Contact(id))
            node = self.simulation.add_node(id, partial(self._make_keeper, how), role="storage")
            if how != AWAY:
                node.start()
        self._contacts = tuple(contacts)
        self.simulation.add_node(tracker.address, self._make_tracker, role="tracker").start()

    def _member(self, key: PrivateKey) -> SimNode:
        node = self.simulation.add_node(key.address, partial(self._make_member, key))
        node.listeners.append(self._published)
        return node

    def _make_member(self, key: PrivateKey, node: SimNode) -> list[Machine]:
        rng = self.simulation.random("node", node.index)
        return [
            StreamNode(node.id, self._ring, key.sign, "c", rng),
            HistoryClient(node.id, self._ring.order),
        ]

    def _make_tracker(self, node: SimNode) -> list[Machine]:
        def policy(stream: StreamId) -> RandomPolicy:
            return RandomPolicy(4, self.simulation.random("policy", stream))

        return [Tracker(policy, storage_of=lambda stream: self._contacts)]

    def _make_keeper(self, how: str, node: SimNode) -> list[Machine]:
        keeper = Kept([] if how == EMPTY else self.kept, self._page_rows)
        return [KeeperNode(keeper, how, lambda: self._contacts)]

    def _published(self, event: Any) -> None:
        if isinstance(event, PublishAccepted):
            self.kept.append(event.signed)

    def _told(self, event: Any) -> None:
        if isinstance(event, MessageArrived):
            self.delivered.append((event.message.content, event.gap_before))

    def _rows(self, rows: list[Row]) -> None:
        self.abandoned += sum(
            isinstance(record, GapAbandoned) and node == self.late.id for _, node, record in rows
        )

    # The story

    def join(self, nodes: list[SimNode]) -> None:
        for node in nodes:
            node.start()
            node.command(0, JoinStream(STREAM))
        self.simulation.run_for(15)

    def publish(self, node: SimNode, *contents: int) -> None:
        for content in contents:
            node.command(0, Publish(STREAM, b"%d" % content))
            self.simulation.run_for(0.05)

    def cut_off(self) -> _Cut:
        """The late one loses all its links; until it heals."""
        cut = _Cut(self.simulation, {self.late.id: None})
        self.simulation.add_shaper(cut)
        self.simulation.scheduler.after(2 * S_NS, cut.time_out)
        self.simulation.run_for(0.1)
        return cut

    def miss(self, *contents: int) -> None:
        """The late one misses some messages, and gets to know of it with the one after them."""
        shaper = NoData(self.late)
        self.simulation.add_shaper(shaper)
        self.publish(self.members[0], *contents[:-1])
        self.simulation.run_for(0.3)
        self.simulation.remove_shaper(shaper)
        self.publish(self.members[0], contents[-1])

    def everybody_dies(self) -> None:
        for node in self.members[:-1]:
            node.crash()

    def contents(self) -> list[int]:
        return [int(content) for content, _ in self.delivered]

    def gaps(self) -> list[int]:
        return [int(content) for content, gap in self.delivered if gap]


class Kept(Keeper):
    """Sees what is published later, too."""

    def __init__(self, messages: list[bytes], page_rows: int) -> None:
        super().__init__(page_rows=page_rows)
        self._source = messages

    def answer(self, question: Any) -> Any:
        if len(self.messages) < len(self._source):
            self.messages = sorted(
                self._source, key=lambda signed: cursor_of(decode_body(signed).id)
            )
        return super().answer(question)
