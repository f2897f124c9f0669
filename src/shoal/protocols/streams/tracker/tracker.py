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

from collections.abc import Callable, Container, Mapping
from itertools import chain, islice
from typing import Any

from shoal.base.containers import RateLimit
from shoal.base.ids import Contact, NodeId, StreamId
from shoal.base.units import MS_NS
from shoal.kernel.effects import CancelTimer, CloseLink, Effect, OpenLink, Send, SetTimer
from shoal.kernel.inputs import (
    AccessChanged,
    AccessChecked,
    Input,
    LinkClosed,
    LinkFailed,
    LinkOpened,
    MessageReceived,
    Started,
    TimerFired,
)
from shoal.kernel.records import MemberChanged, Rejected
from shoal.kernel.wall_clock import WallClock
from shoal.protocols.streams.config import HOLDERS_MAX, STORAGE_NODES_MAX, TrackerConfig
from shoal.protocols.streams.messages import (
    TRACKER_MESSAGES,
    Expect,
    FindHolders,
    FindStorage,
    Join,
    JoinRefused,
    KeyHolders,
    Leave,
    Left,
    Probed,
    Report,
    Status,
    StorageNodes,
)
from shoal.protocols.streams.permissions import AccessTable
from shoal.protocols.streams.stream_quota import NameQuota, PrefixOf, Quotas
from shoal.protocols.streams.topology.policy import LinkChanges, TopologyPolicy
from shoal.protocols.streams.tracker.admission import Admission, refuse
from shoal.protocols.streams.tracker.storage_notices import NOTICES, StorageNotices
from shoal.protocols.streams.tracker.storage_notices import PURPOSE as NOTICE_PURPOSE
from shoal.protocols.streams.tracker.stream_record import Member, Takeover, TrackedStream

NO_ROOM = "it has no room for one more stream of this key, or of its network"
MEMBER = "member"  # the purpose of every link to a node

MakePolicy = Callable[[StreamId], TopologyPolicy]


class Tracker:
    """Trackers are pinned by id: what this machine says, nodes do."""

    accepts = TRACKER_MESSAGES

    def __init__(
        self,
        make_policy: MakePolicy,
        config: TrackerConfig | None = None,
        storage_of: StorageOf = lambda stream: (),
        access: AccessTable | None = None,
        prefix_of: PrefixOf = lambda peer: None,
    ) -> None:
        """Without a table, everybody may join: there is no registry. `prefix_of` says which part of
        the Internet a peer's link comes from."""
        self.config = config or TrackerConfig()
        self.streams: dict[StreamId, TrackedStream] = {}
        self.epoch = 0
        self.counter = 0  # of all streams together: one that empties and fills again goes on
        self._make_policy = make_policy
        self._joined: dict[NodeId, dict[StreamId, None]] = {}  # streams of each linked node
        self._gone: dict[NodeId, None] = {}  # members whose tracker link is down
        self._limits = TrackerLimits(self.config)
        self._admission = Admission(access, storage_of)
        self.questions = Questions(
            self.streams, self._gone, storage_of, self._admission, self.config
        )
        self.wall = WallClock() if access is None else access.wall
        self._storage_of = storage_of
        self._unused: dict[StreamId, None] = {}  # only their storage nodes are in them
        quotas = Quotas(
            self.config.streams_max,
            self.config.streams_of_key_max,
            self.config.streams_of_prefix_max,
        )
        self.quota = NameQuota(quotas, lambda: len(self.streams) - len(self._unused), prefix_of)
        self.notices = StorageNotices(storage_of, self.config, self.quota.holder)
        self._now_ns = 0

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        """The one entry point."""
        self._now_ns = now_ns
        match event:
            case MessageReceived(peer, message):
                return _MESSAGES[type(message)](self, peer, message)
            case TimerFired(key):
                return self._timer(key)
            case LinkOpened(peer, purpose) if purpose == NOTICE_PURPOSE:
                return self.notices.opened(peer)
            case LinkClosed(peer, purpose) | LinkFailed(peer, purpose):
                if purpose == NOTICE_PURPOSE:
                    self.notices.lost(peer)
                    return []
                return self._link_lost(peer)
            case AccessChecked():
                return self._access_checked(event)
            case AccessChanged():
                return self._admission.changed(event, self.streams, self._members)
            case Started():
                self.epoch = max(self.epoch, now_ns // MS_NS)
                return [SetTimer("sweep", self.config.sweep_ns)]
            case _:
                return []

    def check_invariants(self) -> None:
        """Raise InvariantViolated on impossible state."""
        for stream, state in self.streams.items():
            state.check_invariants(stream, (self.epoch, self.counter))
        self.quota.check_invariants()

    # Messages

    def _on_join(self, peer: NodeId, join: Join) -> list[Effect]:
        if join.contact.node != peer:
            return [Rejected(peer, "joins-for-another")]
        now_ns = max(self._now_ns, self.wall.read(self._now_ns))  # a clock set back is no lie
        if join.epoch * MS_NS > now_ns + self.config.epoch_ahead_ns:
            return [Rejected(peer, "impossible-epoch"), Send(Left(join.stream), (peer,))]
        if not self._limits.may_change(peer, join.stream, self._now_ns):
            return [Rejected(peer, "too-many-joins")]
        waits = self._admission.wait(peer, join, self._now_ns)
        return self._admit(peer, join) if waits is None else waits

    def _admit(self, peer: NodeId, join: Join) -> list[Effect]:
        state = self.streams.get(join.stream)
        streams = self._joined.get(peer, {})
        keeps = self._keeps(join.stream, peer)  # of such streams there may be any number
        most = self.config.streams_per_node_max
        if not keeps and join.stream not in streams and len(streams) >= most:
            return _no_room(peer, join.stream)
        freed: list[Effect] = []
        begins = state is None or join.stream in self._unused
        if begins and not keeps and not self.quota.admit(join.stream, peer):
            return _no_room(peer, join.stream)
        if state is None:
            if len(self.streams) >= self.config.streams_max:
                if keeps or not self._unused:
                    self.quota.release(join.stream)
                    return [Rejected(peer, "too-many-streams")]
                freed = self._end_unused()
            state = self.streams[join.stream] = TrackedStream(
                self._make_policy(join.stream), self._now_ns
            )
        effects: list[Effect] = freed
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
        effects.extend(self.notices.joined(join.stream, peer, state.members))
        if not keeps:
            self._unused.pop(join.stream, None)
        elif len(state.members) == 1:
            self._unused[join.stream] = None
        if state.takeover is None and state.is_takeover(join, self.config, self._now_ns):
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
        self._limits.may_change(peer, leave.stream, self._now_ns)
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
            changes = state.learn_delay(peer, rtt)
            if changes is not None:
                effects.extend(self._apply(report.stream, state, changes))
        crashed = [n for n in report.lost if n in linked and n in self._gone]
        for node in crashed:
            effects.extend(self._forget(node, "crash"))
        state = self.streams.get(report.stream)
        if state is None:
            return effects
        failed = [n for n in (*report.lost, *report.accused) if n in linked]
        return effects + self._links_failed(report.stream, state, peer, failed)

    def _on_question(self, peer: NodeId, question: Question) -> list[Effect]:
        return self.questions.asked(peer, question, self._limits, self._now_ns)

    def _not_a_member(self, peer: NodeId, stream: StreamId) -> list[Effect]:
        return [Rejected(peer, "not-a-member"), Send(Left(stream), (peer,))]

    # Permissions

    def _access_checked(self, event: AccessChecked) -> list[Effect]:
        stream, node = event.stream, event.who
        granted, effects = self._admission.checked(event, self._now_ns)
        for request in granted:
            if isinstance(request, Join):
                effects.extend(self._admit(node, request))
            else:
                effects.extend(self.questions.answer(node, request, self._now_ns))
        if node in self._members(stream) and self._admission.is_out(event):
            effects.extend(refuse(stream, node, event.verdict))
            effects.extend(self._remove(stream, node, "revoked"))
        return effects

    def _members(self, stream: StreamId) -> dict[NodeId, Member]:
        state = self.streams.get(stream)
        return {} if state is None else state.members

    # Links and timers

    def _link_lost(self, peer: NodeId) -> list[Effect]:
        if peer not in self._joined:
            return []
        self._gone[peer] = None
        return [SetTimer(("gone", peer), self.config.gone_ns)]

    def _timer(self, key: Any) -> list[Effect]:
        if key == "sweep":
            return [*self._sweep(), SetTimer("sweep", self.config.sweep_ns)]
        if key == NOTICES:
            return self.notices.tick(self.streams)
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
            effects.extend(self._admission.look_after(stream, state.members, self._now_ns))
        return effects

    def _resend(self, stream: StreamId) -> list[Effect]:
        state = self.streams.get(stream)
        if state is None:
            return []
        due_ns = self._now_ns - self.config.resend_ns
        due = [node for node, sent_ns in state.unanswered.items() if sent_ns <= due_ns]
        effects: list[Effect] = []
        for node in due:
            effects.extend(state.instruct(stream, node, self._now_ns))
        return effects + state.resend_timer(stream, self.config.resend_ns, self._now_ns)

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

    # Room

    def _keeps(self, stream: StreamId, node: NodeId) -> bool:
        """Whether a node is a storage node of a stream."""
        return any(contact.node == node for contact in self._storage_of(stream))

    def _end_unused(self) -> list[Effect]:
        """A stream that only its storage nodes are in gives way to one that somebody wants."""
        stream = next(iter(self._unused))
        effects: list[Effect] = []
        for node in list(self.streams[stream].members):
            effects.append(Send(Left(stream), (node,)))
            effects.extend(self._remove(stream, node, "unused"))
        return effects

    # Steps

    def _links_failed(
        self, stream: StreamId, state: TrackedStream, peer: NodeId, missing: list[NodeId]
    ) -> list[Effect]:
        effects: list[Effect] = []
        for other in missing:
            if not self._limits.may_fail(peer, stream, self._now_ns):
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
            self._unused.pop(stream, None)
            self.quota.release(stream)
            return effects
        if all(self._keeps(stream, member) for member in state.members):
            self._unused[stream] = None
            self.quota.release(stream)
        elif self._keeps(stream, node):
            effects += self.notices.left(stream, node)
        return effects + self._apply(stream, state, changes)

    def _apply(
        self,
        stream: StreamId,
        state: TrackedStream,
        changes: LinkChanges,
        also: tuple[NodeId, ...] = (),
    ) -> list[Effect]:
        """Turn link changes into records and instructions; see when the next round is due."""
        effects = state.changed(stream, changes)
        effects.extend(state.next_round(stream, self._now_ns))
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
            effects.extend(state.instruct(stream, node, self._now_ns))
        if not effects:
            return []
        return effects + state.resend_timer(stream, self.config.resend_ns, self._now_ns)


def _no_room(peer: NodeId, stream: StreamId) -> list[Effect]:
    return [Rejected(peer, "too-many-streams"), Send(JoinRefused(stream, True, NO_ROOM), (peer,))]


_MESSAGES: dict[type, Callable[[Tracker, NodeId, Any], list[Effect]]] = {
    Join: Tracker._on_join,
    Leave: Tracker._on_leave,
    Status: Tracker._on_status,
    Report: Tracker._on_report,
    Probed: Tracker._on_probed,
    FindStorage: Tracker._on_question,
    FindHolders: Tracker._on_question,
}

# What a tracker is asked by those who need more of a stream than neighbours: who keeps it, and who
# has a publisher's keys.


Question = FindStorage | FindHolders
StorageOf = Callable[[StreamId], tuple[Contact, ...]]


class Questions:
    """All of them, at one tracker."""

    def __init__(
        self,
        streams: Mapping[StreamId, TrackedStream],
        gone: Container[NodeId],
        storage_of: StorageOf,
        admission: Admission,
        config: TrackerConfig,
    ) -> None:
        """Streams, and the members whose link is down, are the tracker's own, and only read."""
        self._streams = streams
        self._gone = gone
        self._storage_of = storage_of
        self._admission = admission
        self._config = config

    def asked(
        self, peer: NodeId, question: Question, limits: TrackerLimits, now_ns: int
    ) -> list[Effect]:
        """Answer, or find out first whether the asker may know."""
        introduces = isinstance(question, FindHolders)
        may = limits.may_be_introduced if introduces else limits.may_ask
        if not may(peer, now_ns):
            return [Rejected(peer, "too-many-questions")]
        waits = self._admission.wait(peer, question, now_ns)
        return self.answer(peer, question, now_ns) if waits is None else waits

    def answer(self, peer: NodeId, question: Question, now_ns: int) -> list[Effect]:
        """The asker may know."""
        stream = question.stream
        if isinstance(question, FindStorage):
            return [Send(StorageNodes(stream, self.storage_nodes(stream)), (peer,))]

        def may_read(node: NodeId) -> bool:
            return self._admission.may_read(stream, node, now_ns)

        state = self._streams.get(stream)
        return introduce(state, peer, question, may_read, self._gone, self._config, now_ns)

    def storage_nodes(self, stream: StreamId) -> tuple[Contact, ...]:
        """Who keeps a stream. Where a member says that it is reached, it is: its settings may
        name the port of yesterday."""
        state = self._streams.get(stream)
        members = {} if state is None else state.members
        contacts = self._storage_of(stream)[:STORAGE_NODES_MAX]
        joined = [members[c.node].contact if c.node in members else c for c in contacts]
        return tuple(j if j.addresses else c for j, c in zip(joined, contacts, strict=True))


# Whom a tracker has a reader ask for keys: the publisher, and a few others who may read.
#
# A reader that lacks a key, and whose neighbours lack it too, is told of members that it has no
# link with, and these are told of it: a service link, outside the degree. Nobody hands a key to
# somebody who is neither a neighbour nor was announced like this. Whoever asks again is told of the
# same others while nobody comes or goes: it learns no more members by it than by a Join.


LOOKED_AT_MAX = 64  # members of whom it is looked up whether they may read, for one question


def introduce(
    state: TrackedStream | None,
    reader: NodeId,
    find: FindHolders,
    may_read: Callable[[NodeId], bool],
    gone: Container[NodeId],
    config: TrackerConfig,
    now_ns: int,
) -> list[Effect]:
    """Tell a reader whom to ask, and those of it. `gone` are members that cannot be told."""
    if state is None:
        return [Send(KeyHolders(find.request, ()), (reader,))]
    holders = _holders(state, reader, find.publisher, may_read, gone)
    contacts = tuple([state.members[holder].contact for holder in holders])
    told = Send(KeyHolders(find.request, contacts), (reader,))
    if not holders:
        return [told]
    member = state.members.get(reader)
    if member is not None:
        for holder in holders:
            member.introduced.pop(holder, None)
            member.introduced[holder] = now_ns + config.introduced_ns
        while len(member.introduced) > config.introduced_max:
            del member.introduced[next(iter(member.introduced))]
    # Whoever only reads history is in no stream, and has said nowhere how it is reached: it dials.
    contact = Contact(reader) if member is None else member.contact
    return [Send(Expect(find.stream, contact), tuple(holders)), told]


def _holders(
    state: TrackedStream,
    reader: NodeId,
    publisher: NodeId,
    may_read: Callable[[NodeId], bool],
    gone: Container[NodeId],
) -> list[NodeId]:
    members = state.members
    found = [publisher] if publisher in members else []
    # Each reader begins at another one, so that not all of them ask the first.
    start = int.from_bytes(reader, "big") % len(members)
    in_turn = chain(islice(members, start, None), islice(members, start))
    found += [
        node for node in islice(in_turn, LOOKED_AT_MAX) if node != publisher and may_read(node)
    ]
    return [node for node in found if node != reader and node not in gone][:HOLDERS_MAX]


# How often one node may ask a tracker for something.


class TrackerLimits:
    """Of every node, in each stream and over all of them."""

    def __init__(self, config: TrackerConfig) -> None:
        most = config.limited_max
        self._changes = RateLimit(config.changes_burst, config.changes_refill_ns, most)
        self._node_changes = RateLimit(
            config.node_changes_burst, config.node_changes_refill_ns, most
        )
        self._failures = RateLimit(config.failures_burst, config.failures_refill_ns, most)
        self._questions = RateLimit(config.questions_burst, config.questions_refill_ns, most)
        self._introductions = RateLimit(config.questions_burst, config.questions_refill_ns, most)

    def may_change(self, peer: NodeId, stream: StreamId, now_ns: int) -> bool:
        """Join or leave."""
        in_stream = self._changes.allow((peer, stream), now_ns)
        return self._node_changes.allow(peer, now_ns) and in_stream

    def may_fail(self, peer: NodeId, stream: StreamId, now_ns: int) -> bool:
        """Have a link replaced."""
        return self._failures.allow((peer, stream), now_ns)

    def may_ask(self, peer: NodeId, now_ns: int) -> bool:
        """Who keeps a stream."""
        return self._questions.allow(peer, now_ns)

    def may_be_introduced(self, peer: NodeId, now_ns: int) -> bool:
        """Who has a publisher's keys."""
        return self._introductions.allow(peer, now_ns)
