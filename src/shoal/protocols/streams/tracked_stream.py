"""What a tracker knows of one stream."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shoal.base.errors import InvariantViolated
from shoal.base.ids import NodeId, StreamId
from shoal.base.units import US_NS
from shoal.kernel.contact import Contact
from shoal.kernel.effects import Effect, Send, SetTimer
from shoal.kernel.records import InstructionSent, LinkChanged
from shoal.protocols.streams.config import PROBES_MAX, TrackerConfig
from shoal.protocols.streams.link_delay import LinkDelay
from shoal.protocols.streams.messages import Instruction, Join, Probe, Rtt
from shoal.protocols.streams.takeover import Takeover
from shoal.protocols.streams.topology import LinkChanges, Pair, Probes, TopologyPolicy, pair_of

PROBING_MAX = 2 * PROBES_MAX  # of one member: an answer may cross the next question


class Member(msgspec.Struct):
    """A node in one stream, as the tracker sees it."""

    contact: Contact
    version: tuple[int, int] = (0, 0)  # epoch and counter of the newest instruction sent to it
    acknowledged: bool = True
    handling_us: int = 0
    """How long a message stays there before it goes on."""
    probing: tuple[NodeId, ...] = ()
    """Whom it was asked to measure."""
    introduced: dict[NodeId, int] = {}
    """Whom it was told to ask for keys, and until when it may call them."""


class TrackedStream(msgspec.Struct):
    """One stream's topology and members."""

    policy: TopologyPolicy
    since_ns: int
    takeover: Takeover | None = None
    """While its links are being learned from its members."""
    members: dict[NodeId, Member] = {}
    unanswered: dict[NodeId, int] = {}  # member -> when its instruction was sent, oldest first
    delays: dict[Pair, LinkDelay] = {}  # links that somebody measured
    improve_at_ns: int | None = None
    """When the policy's next round is due."""

    def is_settled(self, node: NodeId) -> bool:
        """Whether a member has done what it was last told."""
        return self.members[node].acknowledged

    def is_takeover(self, join: Join, config: TrackerConfig, now_ns: int) -> bool:
        """Whether a newcomer brings news of a topology, and we have none that is worth more."""
        small = len(self.members) <= self.policy.degree + 1
        young = now_ns - self.since_ns < config.settle_max_ns
        return (small or young) and any(n not in self.members for n in join.neighbours)

    def learn_delay(self, node: NodeId, rtt: Rtt) -> LinkChanges | None:
        """A member has measured a link; None if it is none."""
        if rtt.peer not in self.policy.neighbours(node):
            return None
        pair = pair_of(node, rtt.peer)
        known = self.delays.get(pair) or LinkDelay()
        self.delays[pair] = known.told(pair, node, rtt)
        return self.policy.delay_learned(node, rtt.peer, rtt.rtt_us * US_NS)

    def changed(self, stream: StreamId, changes: LinkChanges) -> list[Effect]:
        """Links were cut and made."""
        for pair in changes.removed:
            self.delays.pop(pair, None)
        return [
            *(LinkChanged(stream, pair.a, pair.b, False) for pair in changes.removed),
            *(LinkChanged(stream, pair.a, pair.b, True) for pair in changes.added),
        ]

    def instruct(self, stream: StreamId, node: NodeId, now_ns: int) -> list[Effect]:
        """Tell a member its neighbours, as of its version."""
        member = self.members[node]
        self.unanswered.pop(node, None)
        self.unanswered[node] = now_ns
        contacts = tuple([self.members[n].contact for n in self.policy.neighbours(node)])
        return [
            Send(Instruction(stream, *member.version, contacts), (node,)),
            InstructionSent(stream, node, *member.version, len(contacts)),
        ]

    def resend_timer(self, stream: StreamId, resend_ns: int, now_ns: int) -> list[Effect]:
        """Wake up when the oldest unanswered instruction is due again."""
        for oldest_ns in self.unanswered.values():
            return [SetTimer(("resend", stream), max(0, oldest_ns + resend_ns - now_ns))]
        return []

    def next_round(self, stream: StreamId, now_ns: int) -> list[Effect]:
        """Have the policy's next round come, unless it comes soon enough."""
        pause_ns = self.policy.pause_ns
        if pause_ns is None:
            return []
        if self.improve_at_ns is not None and self.improve_at_ns <= now_ns + pause_ns:
            return []
        self.improve_at_ns = now_ns + pause_ns
        return [SetTimer(("improve", stream), pause_ns)]

    def ask_probes(self, stream: StreamId, probes: Probes) -> list[Effect]:
        """Have members measure how far others are."""
        effects: list[Effect] = []
        for node, others in probes:
            asked = (*self.members[node].probing, *others)
            self.members[node].probing = asked[-PROBING_MAX:]
            contacts = tuple([self.members[other].contact for other in others])
            effects.append(Send(Probe(stream, contacts), (node,)))
        return effects

    def probed(self, node: NodeId, rtts: Sequence[Rtt]) -> bool:
        """A member has measured; False, and nothing is learned, if it was not asked for that."""
        member = self.members[node]
        told = {rtt.peer for rtt in rtts}
        if not told.issubset(member.probing):
            return False
        member.probing = tuple([peer for peer in member.probing if peer not in told])
        for rtt in rtts:
            if rtt.peer in self.members:
                self.policy.delay_learned(node, rtt.peer, rtt.rtt_us * US_NS)
        return True

    def is_pair(self, one: NodeId, other: NodeId, now_ns: int) -> bool:
        """Whether either of two members was told to reach the other."""
        if one not in self.members or other not in self.members:
            return False
        if other in self.policy.neighbours(one):
            return True
        return self._was_told(one, other, now_ns) or self._was_told(other, one, now_ns)

    def _was_told(self, one: NodeId, other: NodeId, now_ns: int) -> bool:
        member = self.members[one]
        return other in member.probing or now_ns < member.introduced.get(other, 0)

    def check_invariants(self, stream: StreamId, newest: tuple[int, int]) -> None:
        """Raise InvariantViolated on impossible state; newest is the last instruction's version."""
        self.policy.check_invariants()
        if list(self.policy.nodes) != list(self.members):
            raise InvariantViolated(f"{stream}: members and topology disagree")
        for pair in self.delays:
            if pair.b not in self.policy.neighbours(pair.a):
                raise InvariantViolated(f"{stream}: a round trip without a link")
        for node, member in self.members.items():
            if member.version > newest:
                raise InvariantViolated(f"{stream}: a counter from the future")
            if any(n not in self.members for n in self.policy.neighbours(node)):
                raise InvariantViolated(f"{stream}: {node.hex()} is linked to a non-member")
            if member.acknowledged == (node in self.unanswered):
                raise InvariantViolated(f"{stream}: {node.hex()} answered and unanswered")
