"""The tracker machine: owns the topology of its streams, carries none of their data.

Theory of operation. A node's Join or Leave, a status that lacks an instructed neighbour, a lost
link in a report: each is told to the stream's topology policy, which answers with links to make
and to cut. Every node whose neighbours changed gets an instruction with its full neighbour set
and the tracker's next counter. An instruction unanswered by a status of the same counter is sent
again; a status of an older one is ignored. So lost and late messages only cost time.

A member whose tracker link closes has `gone_ns` to come back, unless a neighbour reports its
link lost too: then it crashed, and the overlay closes over it at once. What a member accuses
another of costs the two their link, and nobody else anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from shoal.base.errors import InvariantViolated
from shoal.base.ids import NodeId, StreamId
from shoal.base.units import MS_NS, US_NS
from shoal.kernel.contact import Contact
from shoal.kernel.effects import CloseLink, Effect, OpenLink, Send, SetTimer
from shoal.kernel.inputs import (
    Input,
    LinkClosed,
    LinkFailed,
    MessageReceived,
    Started,
    TimerFired,
)
from shoal.kernel.records import InstructionSent, LinkChanged, MemberChanged, Rejected
from shoal.protocols.streams.config import TrackerConfig
from shoal.protocols.streams.messages import (
    TRACKER_MESSAGES,
    Instruction,
    Join,
    Leave,
    Left,
    Report,
    Status,
)
from shoal.protocols.streams.rate_limit import RateLimit
from shoal.protocols.streams.topology import LinkChanges, Pair, TopologyPolicy, pair_of

MEMBER = "member"  # the purpose of every link to a node

MakePolicy = Callable[[StreamId], TopologyPolicy]


class Member(msgspec.Struct):
    """A node in one stream, as the tracker sees it."""

    contact: Contact
    version: tuple[int, int] = (0, 0)  # epoch and counter of the newest instruction sent to it
    acknowledged: bool = True


class TrackedStream(msgspec.Struct):
    """One stream's topology and members."""

    policy: TopologyPolicy
    members: dict[NodeId, Member] = {}
    unanswered: dict[NodeId, int] = {}  # member -> when its instruction was sent, oldest first
    rtts_us: dict[Pair, int] = {}  # links that somebody measured


class Tracker:
    """Trackers are pinned by id: what this machine says, nodes do."""

    accepts = TRACKER_MESSAGES

    def __init__(self, make_policy: MakePolicy, config: TrackerConfig | None = None) -> None:
        self.config = config or TrackerConfig()
        self.streams: dict[StreamId, TrackedStream] = {}
        self.epoch = 0
        self.counter = 0  # of all streams together: one that empties and fills again goes on
        self._make_policy = make_policy
        self._joined: dict[NodeId, dict[StreamId, None]] = {}  # streams of each linked node
        self._gone: dict[NodeId, None] = {}  # members whose tracker link is down
        c = self.config
        self._changes = RateLimit(c.changes_burst, c.changes_refill_ns, c.limited_max)
        self._node_changes = RateLimit(
            c.node_changes_burst, c.node_changes_refill_ns, c.limited_max
        )
        self._failures = RateLimit(c.failures_burst, c.failures_refill_ns, c.limited_max)
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
            state.policy.check_invariants()
            if list(state.policy.nodes) != list(state.members):
                raise InvariantViolated(f"{stream}: members and topology disagree")
            for pair in state.rtts_us:
                if pair.b not in state.policy.neighbours(pair.a):
                    raise InvariantViolated(f"{stream}: a round trip without a link")
            for node, member in state.members.items():
                if member.version > (self.epoch, self.counter):
                    raise InvariantViolated(f"{stream}: a counter from the future")
                if any(n not in state.members for n in state.policy.neighbours(node)):
                    raise InvariantViolated(f"{stream}: {node.hex()} is linked to a non-member")
                if member.acknowledged == (node in state.unanswered):
                    raise InvariantViolated(f"{stream}: {node.hex()} answered and unanswered")

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
            state = self.streams[join.stream] = TrackedStream(self._make_policy(join.stream))
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
            return effects + self._instruct(join.stream, state, (peer,))
        state.members[peer] = Member(join.contact)
        changes = state.policy.join(peer)
        effects.append(MemberChanged(join.stream, peer, True, "join"))
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
        for rtt in report.rtts:
            if rtt.peer in state.policy.neighbours(peer):
                state.rtts_us[pair_of(peer, rtt.peer)] = rtt.rtt_us
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
        return self._resend(key[1])

    def _sweep(self) -> list[Effect]:
        effects: list[Effect] = []
        for stream, state in self.streams.items():
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
        """Turn link changes into records and instructions."""
        for pair in changes.removed:
            state.rtts_us.pop(pair, None)
        effects: list[Effect] = [
            *(LinkChanged(stream, pair.a, pair.b, False) for pair in changes.removed),
            *(LinkChanged(stream, pair.a, pair.b, True) for pair in changes.added),
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
}
