"""What a tracker knows of one stream."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from shoal.base.errors import InvariantViolated
from shoal.base.ids import Contact, NodeId, StreamId
from shoal.base.units import US_NS
from shoal.kernel.effects import Effect, Send, SetTimer
from shoal.kernel.records import InstructionSent, LinkChanged
from shoal.protocols.streams.config import PROBES_MAX, TrackerConfig
from shoal.protocols.streams.messages import Instruction, Join, Probe, Rtt
from shoal.protocols.streams.topology.policy import (
    LinkChanges,
    Pair,
    Probes,
    TopologyPolicy,
    pair_of,
)

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


# A tracker learns the topology of a stream from the nodes that are in it.
#
# Nodes of a stream that lost its tracker come with Joins that name their neighbours. Links that
# both ends name are adopted; meanwhile no slot is filled and nobody is told anything, since whoever
# is told too early would part with neighbours that are still on their way here. It ends when
# everybody who was named has come, or when nobody has come for a while; then the policy fills what
# is free.
#
# Names are claims: of a node that has not come nothing is adopted, and one that lies about its
# neighbours only waits longer for its own. Nodes that come without neighbours need not wait: they
# go between two nodes whose neighbours are all here, or to others like them.


IN_VAIN_MAX = 2  # nodes without neighbours that are tried in vain, each time that somebody comes


class Takeover:
    """What is known so far."""

    def __init__(self, policy: TopologyPolicy, config: TrackerConfig, now_ns: int) -> None:
        policy.hold()
        self.unplaced: dict[NodeId, None] = {}
        """Came without neighbours, and have none yet."""
        self._policy = policy
        self._config = config
        self._begun_ns = self._newest_ns = now_ns
        self._claims: dict[NodeId, dict[NodeId, None]] = {}
        self._awaited: dict[NodeId, dict[NodeId, None]] = {}  # named, not here -> who named them

    @property
    def is_over(self) -> bool:
        """Everybody who was named is here."""
        return not self._awaited

    def wait_ns(self, now_ns: int) -> int:
        """How long the others are waited for, if nobody comes."""
        quiet_ns = self._newest_ns + self._config.settle_ns
        end_ns = min(quiet_ns, self._begun_ns + self._config.settle_max_ns)
        return max(0, end_ns - now_ns)

    def held_back(self, node: NodeId) -> bool:
        """Whether an instruction now would cost a member neighbours that it may keep."""
        return node in self.unplaced or self._awaits(node)

    def members(self) -> tuple[NodeId, ...]:
        """All who were not told anything when they came."""
        return (*self._claims, *self.unplaced)

    def came(self, node: NodeId, neighbours: tuple[NodeId, ...], now_ns: int) -> None:
        """A member, already in the policy, names its neighbours; perhaps again."""
        self.gone(node)
        self._awaited.pop(node, None)
        claimed = dict.fromkeys([n for n in neighbours if n != node])
        if not claimed:
            self.unplaced[node] = None
            return
        self._newest_ns = now_ns
        self._claims[node] = claimed
        for other in claimed:
            if other not in self._policy.nodes:
                self._awaited.setdefault(other, {})[node] = None
            elif node in self._claims.get(other, ()):
                self._policy.adopt(node, other)

    def gone(self, node: NodeId) -> None:
        """A member has left: what it said counts no more."""
        self.unplaced.pop(node, None)
        for other in self._claims.pop(node, ()):
            named_by = self._awaited.get(other)
            if named_by is not None:
                named_by.pop(node, None)
                if not named_by:
                    del self._awaited[other]

    def place(self) -> list[LinkChanges]:
        """Find neighbours for those without, among nodes that can be told: one after the other, as
        long as that works. Whoever was tried in vain goes to the end of the queue."""
        made: list[LinkChanges] = []
        in_vain = 0
        for node in list(self.unplaced):
            if node not in self.unplaced:
                continue  # it has become the neighbour of one before it
            changes = self._policy.place(node, lambda other: not self._awaits(other))
            if node in changes.touched():
                made.append(changes)
                for placed in changes.touched():
                    self.unplaced.pop(placed, None)
                continue
            del self.unplaced[node]
            self.unplaced[node] = None
            in_vain += 1
            if in_vain == IN_VAIN_MAX:
                break
        return made

    def _awaits(self, node: NodeId) -> bool:
        return any(node in self._awaited.get(n, ()) for n in self._claims.get(node, ()))


# What a tracker knows of a link's delay, from the reports of both its ends.


class LinkDelay(msgspec.Struct, frozen=True):
    """The newest word of each end. Both measure the same round trips, independently: together
    they know more than whichever reported last."""

    of_a: Rtt | None = None
    of_b: Rtt | None = None

    def told(self, pair: Pair, reporter: NodeId, rtt: Rtt) -> LinkDelay:
        """The same, after one end's report."""
        return LinkDelay(rtt, self.of_b) if reporter == pair.a else LinkDelay(self.of_a, rtt)

    @property
    def rtt_us(self) -> int:
        """The mean round trip."""
        words = self._words()
        return round(sum(word.rtt_us for word in words) / len(words))

    @property
    def one_way_ms(self) -> float:
        """Half of it: what a message takes in the mean, as both ways are alike or average out."""
        words = self._words()
        return sum(word.rtt_us for word in words) / len(words) / 2000

    @property
    def deviation_ms(self) -> float:
        """How much single messages differ: a round trip is two of them, and variances add up."""
        words = self._words()
        squares = sum(word.deviation_us**2 for word in words) / len(words)
        return math.sqrt(squares / 2) / 1000

    def _words(self) -> list[Rtt]:
        return [word for word in (self.of_a, self.of_b) if word is not None]


Overlay = tuple[list[NodeId], list[Pair], dict[Pair, LinkDelay], dict[NodeId, int]]


def overlay_of(state: TrackedStream) -> Overlay:
    """What estimate_delays asks for, copied: the estimate may take its time in a thread."""
    pairs = {pair_of(a, b): None for a in state.members for b in state.policy.neighbours(a)}
    handling_us = {node: member.handling_us for node, member in state.members.items()}
    return list(state.members), list(pairs), dict(state.delays), handling_us
