"""The tracker machine: owns the topology of its streams, carries none of their data.

Theory of operation. A node's Join or Leave, a status that lacks an instructed neighbour, a lost
link in a report: each is told to the stream's topology policy, which answers with links to make
and to cut. Every node whose neighbours changed gets an instruction with its full neighbour set
and the tracker's next counter. An instruction unanswered by a status of the same counter is sent
again; a status of an older one is ignored. So lost and late messages only cost time.

Members of a stream that is new here, but not to them, bring their neighbours along: their tracker
died, or it was this one. Their links are taken over rather than made anew (`takeover.py`).

A member whose tracker link closes has `gone_ns` to come back, unless a neighbour reports its
link lost too: then it crashed, and the overlay closes over it at once. What a member accuses
another of costs the two their link, and nobody else anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.base.ids import NodeId, StreamId
from shoal.base.units import MS_NS, US_NS
from shoal.kernel.contact import Contact
from shoal.kernel.effects import CancelTimer, CloseLink, Effect, OpenLink, Send, SetTimer
from shoal.kernel.inputs import (
    Input,
    LinkClosed,
    LinkFailed,
    MessageReceived,
    Started,
    TimerFired,
)
from shoal.kernel.rate_limit import RateLimit
from shoal.kernel.records import InstructionSent, LinkChanged, MemberChanged, Rejected
from shoal.protocols.streams.config import STORAGE_NODES_MAX, TrackerConfig
from shoal.protocols.streams.link_delay import LinkDelay
from shoal.protocols.streams.messages import (
    TRACKER_MESSAGES,
    FindStorage,
    Instruction,
    Join,
    Leave,
    Left,
    Probed,
    Report,
    Status,
    StorageNodes,
)
from shoal.protocols.streams.takeover import Takeover
from shoal.protocols.streams.topology import LinkChanges, TopologyPolicy, pair_of
from shoal.protocols.streams.tracked_stream import Member, TrackedStream

MEMBER = "member"  # the purpose of every link to a node

MakePolicy = Callable[[StreamId], TopologyPolicy]
StorageOf = Callable[[StreamId], tuple[Contact, ...]]


class Tracker:
    """Trackers are pinned by id: what this machine says, nodes do."""

    accepts = TRACKER_MESSAGES

    def __init__(
        self,
        make_policy: MakePolicy,
        config: TrackerConfig | None = None,
        storage_of: StorageOf = lambda stream: (),
    ) -> None:
        self.config = config or TrackerConfig()
        self.streams: dict[StreamId, TrackedStream] = {}
        self.epoch = 0
        self.counter = 0  # of all streams together: one that empties and fills again goes on
        self._make_policy = make_policy
        self._storage_of = storage_of
        self._joined: dict[NodeId, dict[StreamId, None]] = {}  # streams of each linked node
        self._gone: dict[NodeId, None] = {}  # members whose tracker link is down
        c = self.config
        self._changes = RateLimit(c.changes_burst, c.changes_refill_ns, c.limited_max)
        self._node_changes = RateLimit(
            c.node_changes_burst, c.node_changes_refill_ns, c.limited_max
        )
        self._failures = RateLimit(c.failures_burst, c.failures_refill_ns, c.limited_max)
        self._questions = RateLimit(c.questions_burst, c.questions_refill_ns, c.limited_max)
        self._now_ns = 0

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        """The one entry point."""
        self._now_ns = now_ns
        match event:
            case MessageReceived(peer, message):
                return _MESSAGES[type(message)](self, peer, message)
            case TimerFired(key):
                return self._timer(key)
            case LinkClosed(peer) | LinkFailed(peer):
                return self._link_lost(peer)
            case Started():
                self.epoch = max(self.epoch, now_ns // MS_NS)
                return [SetTimer("sweep", self.config.sweep_ns)]
            case _:
                return []

    def check_invariants(self) -> None:
        """Raise InvariantViolated on impossible state."""
        for stream, state in self.streams.items():
            state.check_invariants(stream, (self.epoch, self.counter))

    # Messages

    def _on_join(self, peer: NodeId, join: Join) -> list[Effect]:
        if join.contact.node != peer:
            return [Rejected(peer, "joins-for-another")]
        if join.epoch * MS_NS > self._now_ns + self.config.epoch_ahead_ns:
            return [Rejected(peer, "impossible-epoch"), Send(Left(join.stream), (peer,))]
        if not self._may_change(peer, join.stream):
            return [Rejected(peer, "too-many-joins")]
        state = self.streams.get(join.stream)
        streams = self._joined.get(peer, {})
        if state is None and len(self.streams) >= self.config.streams_max:
            return [Rejected(peer, "too-many-streams")]
        if join.stream not in streams and len(streams) >= self.config.streams_per_node_max:
            return [Rejected(peer, "too-many-streams")]
        if state is None:
            state = self.streams[join.stream] = TrackedStream(
                self._make_policy(join.stream), self._now_ns
            )
        effects: list[Effect] = []
        if peer not in self._joined or peer in self._gone:
            effects.append(OpenLink(Contact(peer), MEMBER))  # keep the link it came over
        self._joined.setdefault(peer, {})[join.stream] = None
        self._gone.pop(peer, None)
        # A node that obeyed a later instruction would ignore ours: go beyond it.
        if (join.epoch, join.counter) > (self.epoch, self.counter):
            self.epoch = join.epoch + 1
        member = state.members.get(peer)
        if member is not None:
            member.contact = join.contact
            if state.takeover is not None and not member.version[1]:
                # Told now, it would leave its old tracker before the others have come from there.
                return effects + self._learn(join, state, state.takeover)
            return effects + self._instruct(join.stream, state, (peer,))
        state.members[peer] = Member(join.contact)
        effects.append(MemberChanged(join.stream, peer, True, "join"))
        if state.takeover is None and self._is_takeover(join, state):
            state.takeover = Takeover(state.policy, self.config, self._now_ns)
        changes = state.policy.join(peer)
        if state.takeover is not None:
            return effects + self._learn(join, state, state.takeover)
        return effects + self._apply(join.stream, state, changes, (peer,))

    def _on_leave(self, peer: NodeId, leave: Leave) -> list[Effect]:
        left = Send(Left(leave.stream), (peer,))
        state = self.streams.get(leave.stream)
        if state is None or peer not in state.members:
            return [left]  # our answer to an earlier Leave was lost
        # A node that leaves too often is let go, and waits when it comes back.
        self._may_change(peer, leave.stream)
        return [left, *self._remove(leave.stream, peer, "leave")]

    def _on_status(self, peer: NodeId, status: Status) -> list[Effect]:
        state = self.streams.get(status.stream)
        member = state.members.get(peer) if state is not None else None
        if state is None or member is None:
            return self._not_a_member(peer, status.stream)
        if (status.epoch, status.counter) != member.version:
            return [Rejected(peer, "late-status")]
        if not member.acknowledged:
            member.acknowledged = True
            del state.unanswered[peer]
        connected = dict.fromkeys(status.neighbours)
        missing = [n for n in state.policy.neighbours(peer) if n not in connected]
        return self._links_failed(status.stream, state, peer, missing)

    def _on_report(self, peer: NodeId, report: Report) -> list[Effect]:
        state = self.streams.get(report.stream)
        if state is None or peer not in state.members:
            return self._not_a_member(peer, report.stream)
        effects: list[Effect] = []
        linked = dict.fromkeys(state.policy.neighbours(peer))
        state.members[peer].handling_us = report.handling_us
        for rtt in report.rtts:
            if rtt.peer in state.policy.neighbours(peer):
                pair = pair_of(peer, rtt.peer)
                known = state.delays.get(pair) or LinkDelay()
                state.delays[pair] = known.told(pair, peer, rtt)
                changes = state.policy.delay_learned(peer, rtt.peer, rtt.rtt_us * US_NS)
                effects.extend(self._apply(report.stream, state, changes))
        crashed = [n for n in report.lost if n in linked and n in self._gone]
        for node in crashed:
            effects.extend(self._forget(node, "crash"))
        state = self.streams.get(report.stream)
        if state is None:
            return effects
        failed = [n for n in (*report.lost, *report.accused) if n in linked]
        return effects + self._links_failed(report.stream, state, peer, failed)

    def _on_find_storage(self, peer: NodeId, find: FindStorage) -> list[Effect]:
        if not self._questions.allow(peer, self._now_ns):
            return [Rejected(peer, "too-many-questions")]
        contacts = self.storage_nodes(find.stream)
        return [Send(StorageNodes(find.stream, contacts), (peer,))]

    def storage_nodes(self, stream: StreamId) -> tuple[Contact, ...]:
        """Who keeps a stream. Where a member says that it is reached, it is: its settings may
        name the port of yesterday."""
        state = self.streams.get(stream)
        members = {} if state is None else state.members
        contacts = self._storage_of(stream)[:STORAGE_NODES_MAX]
        joined = [members[c.node].contact if c.node in members else c for c in contacts]
        return tuple(j if j.addresses else c for j, c in zip(joined, contacts, strict=True))

    def _may_change(self, peer: NodeId, stream: StreamId) -> bool:
        in_stream = self._changes.allow((peer, stream), self._now_ns)
        return self._node_changes.allow(peer, self._now_ns) and in_stream

    def _not_a_member(self, peer: NodeId, stream: StreamId) -> list[Effect]:
        return [Rejected(peer, "not-a-member"), Send(Left(stream), (peer,))]

    # Links and timers

    def _link_lost(self, peer: NodeId) -> list[Effect]:
        if peer not in self._joined:
            return []
        self._gone[peer] = None
        return [SetTimer(("gone", peer), self.config.gone_ns)]

    def _timer(self, key: Any) -> list[Effect]:
        if key == "sweep":
            return [*self._sweep(), SetTimer("sweep", self.config.sweep_ns)]
        if key[0] == "gone":
            return self._forget(key[1], "gone") if key[1] in self._gone else []
        if key[0] == "settle":
            return self._settle(key[1])
        if key[0] == "improve":
            return self._improve(key[1])
        return self._resend(key[1])

    def _sweep(self) -> list[Effect]:
        effects: list[Effect] = []
        for stream, state in self.streams.items():
            if state.takeover is None:
                effects.extend(self._apply(stream, state, state.policy.sweep()))
        return effects

    def _resend(self, stream: StreamId) -> list[Effect]:
        state = self.streams.get(stream)
        if state is None:
            return []
        due_ns = self._now_ns - self.config.resend_ns
        due = [node for node, sent_ns in state.unanswered.items() if sent_ns <= due_ns]
        effects: list[Effect] = []
        for node in due:
            effects.extend(self._say(stream, state, node))
        return effects + self._resend_timer(stream, state)

    # Improving

    def _improve(self, stream: StreamId) -> list[Effect]:
        state = self.streams.get(stream)
        if state is None:
            return []
        state.improve_at_ns = None
        if state.takeover is not None:
            return state.next_round(stream, self._now_ns)
        improved = state.policy.improve(state.is_settled, self._now_ns)
        effects = self._apply(stream, state, improved.changes)
        return effects + state.ask_probes(stream, improved.probes)

    def _on_probed(self, peer: NodeId, probed: Probed) -> list[Effect]:
        state = self.streams.get(probed.stream)
        if state is None or peer not in state.members:
            return self._not_a_member(peer, probed.stream)
        return [] if state.probed(peer, probed.rtts) else [Rejected(peer, "unasked-probe")]

    # Taking over

    def _is_takeover(self, join: Join, state: TrackedStream) -> bool:
        """Whether a newcomer brings news of a topology, and we have none that is worth more."""
        small = len(state.members) <= state.policy.degree + 1
        young = self._now_ns - state.since_ns < self.config.settle_max_ns
        return (small or young) and any(n not in state.members for n in join.neighbours)

    def _learn(self, join: Join, state: TrackedStream, takeover: Takeover) -> list[Effect]:
        takeover.came(join.contact.node, join.neighbours, self._now_ns)
        if takeover.is_over:
            return self._settle(join.stream)
        placed = [
            effect
            for changes in takeover.place()
            for effect in self._apply(join.stream, state, changes)
        ]
        return [*placed, SetTimer(("settle", join.stream), takeover.wait_ns(self._now_ns))]

    def _settle(self, stream: StreamId) -> list[Effect]:
        """The links are learned: fill what is free, and answer everybody."""
        state = self.streams.get(stream)
        if state is None or state.takeover is None:
            return []
        members, state.takeover = state.takeover.members(), None
        timer = CancelTimer(("settle", stream))
        return [timer, *self._apply(stream, state, state.policy.sweep(), members)]

    # Steps

    def _links_failed(
        self, stream: StreamId, state: TrackedStream, peer: NodeId, missing: list[NodeId]
    ) -> list[Effect]:
        effects: list[Effect] = []
        for other in missing:
            if not self._failures.allow((peer, stream), self._now_ns):
                return [*effects, Rejected(peer, "too-many-failures")]  # it will say so again
            changes = state.policy.link_failed(peer, other)
            effects.extend(self._apply(stream, state, changes))
        return effects

    def _forget(self, node: NodeId, reason: str) -> list[Effect]:
        """A node is gone: out of every stream."""
        effects: list[Effect] = []
        for stream in list(self._joined.get(node, ())):
            effects.extend(self._remove(stream, node, reason))
        return effects

    def _remove(self, stream: StreamId, node: NodeId, reason: str) -> list[Effect]:
        state = self.streams[stream]
        del state.members[node]
        state.unanswered.pop(node, None)
        if state.takeover is not None:
            state.takeover.gone(node)
        effects: list[Effect] = [MemberChanged(stream, node, False, reason)]
        del self._joined[node][stream]
        if not self._joined[node]:
            del self._joined[node]
            self._gone.pop(node, None)
            effects.append(CloseLink(node, MEMBER))
        changes = state.policy.leave(node)
        if not state.members:
            del self.streams[stream]
            return effects
        return effects + self._apply(stream, state, changes)

    def _apply(
        self,
        stream: StreamId,
        state: TrackedStream,
        changes: LinkChanges,
        also: tuple[NodeId, ...] = (),
    ) -> list[Effect]:
        """Turn link changes into records and instructions; see when the next round is due."""
        for pair in changes.removed:
            state.delays.pop(pair, None)
        effects: list[Effect] = [
            *(LinkChanged(stream, pair.a, pair.b, False) for pair in changes.removed),
            *(LinkChanged(stream, pair.a, pair.b, True) for pair in changes.added),
            *state.next_round(stream, self._now_ns),
        ]
        nodes = dict.fromkeys((*also, *changes.touched()))
        return effects + self._instruct(stream, state, tuple(nodes))

    def _instruct(
        self, stream: StreamId, state: TrackedStream, nodes: tuple[NodeId, ...]
    ) -> list[Effect]:
        effects: list[Effect] = []
        for node in nodes:
            member = state.members.get(node)
            if member is None:
                continue  # it has just left
            if state.takeover is not None and state.takeover.held_back(node):
                continue  # it is told when the takeover ends
            self.counter += 1
            member.version = (self.epoch, self.counter)
            member.acknowledged = False
            effects.extend(self._say(stream, state, node))
        return effects + self._resend_timer(stream, state) if effects else effects

    def _say(self, stream: StreamId, state: TrackedStream, node: NodeId) -> list[Effect]:
        member = state.members[node]
        state.unanswered.pop(node, None)
        state.unanswered[node] = self._now_ns
        contacts = tuple([state.members[n].contact for n in state.policy.neighbours(node)])
        return [
            Send(Instruction(stream, *member.version, contacts), (node,)),
            InstructionSent(stream, node, *member.version, len(contacts)),
        ]

    def _resend_timer(self, stream: StreamId, state: TrackedStream) -> list[Effect]:
        for oldest_ns in state.unanswered.values():
            wait_ns = max(0, oldest_ns + self.config.resend_ns - self._now_ns)
            return [SetTimer(("resend", stream), wait_ns)]
        return []


_MESSAGES: dict[type, Callable[[Tracker, NodeId, Any], list[Effect]]] = {
    Join: Tracker._on_join,
    Leave: Tracker._on_leave,
    Status: Tracker._on_status,
    Report: Tracker._on_report,
    Probed: Tracker._on_probed,
    FindStorage: Tracker._on_find_storage,
}
