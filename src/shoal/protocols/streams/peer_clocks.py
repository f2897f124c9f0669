"""Whether this node's time of day is that of the trackers and storage nodes that it pins.

Each of them is asked now and then, over an authenticated link, and the median of their answers
decides; of an even number, the one of the two in the middle that blames us less. Nobody else is
asked, and an answer that nobody asked for counts nothing. The node never sets its time by theirs:
all that comes of it is that a node whose time is off says so, and publishes nothing.

A step of our own clock makes all earlier answers worthless; then, and while we are off, they are
asked again soon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import msgspec

from shoal.base.containers import RateLimit
from shoal.base.errors import InvariantViolated
from shoal.base.ids import Contact, NodeId
from shoal.base.units import MS_NS, S_NS
from shoal.kernel.effects import CancelTimer, CloseLink, Effect, Notify, OpenLink, Send, SetTimer
from shoal.kernel.inputs import (
    CommandIssued,
    Input,
    LinkClosed,
    LinkFailed,
    LinkOpened,
    MessageReceived,
    Started,
    TimerFired,
)
from shoal.kernel.records import Rejected
from shoal.kernel.wall_clock import WallClock
from shoal.protocols.streams.messages import CLOCK_MESSAGES, AskTime, TellTime

PURPOSE = "clock"
ASK, LATE = "ask", "late"  # timers


class ClockConfig(msgspec.Struct, frozen=True):
    """Bounds and intervals of comparing clocks, with their reasons."""

    ask_ns: int = 300 * S_NS
    """Between two rounds while all is well: clocks drift by seconds a day, and a step is noticed
    without others. Thousands of nodes may ask one storage node, which is dialled for that."""

    first_ns: int = 10 * S_NS
    """The first round comes within this time after the start, or before anything is published."""

    again_ns: int = 5 * S_NS
    """Between two rounds while nobody has answered, or our time is off."""

    answer_ns: int = 5 * S_NS
    """A round ends after this: a dial around the world, and an answer. What takes longer says
    little about the time."""

    peers_max: int = 15
    """Asked of those that are pinned, the first ones, trackers before storage nodes: the median of
    so many is hard to move."""

    off_ns: int = 60 * S_NS
    """Our time is off if it differs by more: as far ahead as nodes take messages."""

    answers_burst: int = 8
    answers_refill_ns: int = 1 * S_NS
    answers_peers_max: int = 1_000
    """Questions that one peer has answered at once, and then per interval."""


class CompareClocks(msgspec.Struct, frozen=True):
    """Command: ask now, unless that is under way; ClocksCompared follows."""


class ClocksCompared(msgspec.Struct, frozen=True):
    """Told at the end of a round, and at each answer as far as it is known by then."""

    ahead_ns: int | None
    """By how much our time of day is ahead of theirs; None: nobody has answered."""
    answers: tuple[tuple[NodeId, int], ...]
    """Of each that answered, by how much we are ahead of it."""
    asked: int
    final: bool


class _Round(msgspec.Struct):
    asked: dict[NodeId, tuple[int, int] | None]
    """Nonce, and when it was sent; None: not linked yet."""
    begun_ns: int
    count: int
    answers: dict[NodeId, int] = {}


class PeerClocks:
    """Asks, answers, and tells what came of it."""

    accepts = CLOCK_MESSAGES

    def __init__(
        self,
        node: NodeId,
        pinned: Callable[[], Sequence[Contact]],
        rng: Random,
        config: ClockConfig | None = None,
    ) -> None:
        """`pinned` gives the trackers and storage nodes that this node's settings name by id."""
        self.wall = WallClock()
        self.config = config or ClockConfig()
        self.compared: ClocksCompared | None = None
        """What the last round told, at `compared_ns`."""
        self.compared_ns = 0
        self._node = node
        self._pinned = pinned
        self._rng = rng
        self._round: _Round | None = None
        config = self.config
        self._answers = RateLimit(
            config.answers_burst, config.answers_refill_ns, config.answers_peers_max
        )

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        """The one entry point."""
        match event:
            case MessageReceived(peer, AskTime(nonce)):
                if not self._answers.allow(peer, now_ns):
                    return [Rejected(peer, "asks-time-too-often")]
                wall_ms = max(0, self.wall.read(now_ns)) // MS_NS
                return [Send(TellTime(nonce, wall_ms), (peer,))]
            case MessageReceived(peer, TellTime() as told):
                return self._told(peer, told, now_ns)
            case LinkOpened(peer):
                return self._linked(peer, now_ns)
            case LinkClosed(peer) | LinkFailed(peer):
                return self._lost(peer, now_ns)
            case TimerFired("ask"):
                return self._begin(now_ns)
            case TimerFired("late"):
                return self._end(now_ns)
            case CommandIssued(CompareClocks()):
                return self._begin(now_ns)
            case Started():
                # Thousands may start at once; whoever publishes has them asked at once.
                return [SetTimer(ASK, self._rng.randrange(self.config.first_ns))]
            case _:
                return []

    def check_invariants(self) -> None:
        """Raise InvariantViolated on impossible state."""
        if self._round is not None and not self._round.answers.keys() <= self._round.asked.keys():
            raise InvariantViolated("a clock counts that was not asked")

    # Asking

    def _begin(self, now_ns: int) -> list[Effect]:
        if self._round is not None:
            return []  # it ends soon
        contacts = [contact for contact in self._pinned() if contact.node != self._node]
        contacts = contacts[: self.config.peers_max]
        self._round = _Round({contact.node: None for contact in contacts}, now_ns, len(contacts))
        if not contacts:
            return self._end(now_ns)
        links: list[Effect] = [OpenLink(contact, PURPOSE) for contact in contacts]
        return [*links, SetTimer(LATE, self.config.answer_ns)]

    def _linked(self, peer: NodeId, now_ns: int) -> list[Effect]:
        if self._round is None or peer not in self._round.asked:
            return [CloseLink(peer, PURPOSE)]
        nonce = self._rng.getrandbits(53)
        self._round.asked[peer] = nonce, now_ns
        return [Send(AskTime(nonce), (peer,))]

    def _told(self, peer: NodeId, told: TellTime, now_ns: int) -> list[Effect]:
        asked = None if self._round is None else self._round.asked.get(peer)
        if self._round is None or asked is None or asked[0] != told.nonce:
            return [Rejected(peer, "unasked-time")]
        sent_ns = asked[1]
        self._round.asked[peer] = None
        if self.wall.stepped_ns < sent_ns:  # or the two readings do not belong together
            # It was read some time between the question and now: the middle is at most half wrong.
            theirs_ns = told.wall_ms * MS_NS + (now_ns - sent_ns) // 2
            self._round.answers[peer] = self.wall.read(now_ns) - theirs_ns
        return [CloseLink(peer, PURPOSE), *self._answered(peer, now_ns)]

    def _lost(self, peer: NodeId, now_ns: int) -> list[Effect]:
        return self._answered(peer, now_ns)

    def _answered(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """Nothing more is to be had of it in this round."""
        if self._round is None or peer not in self._round.asked:
            return []
        if peer not in self._round.answers:
            del self._round.asked[peer]
        if self._round.asked.keys() != self._round.answers.keys():
            return [Notify(self._result(self._round, final=False))]
        return self._end(now_ns)

    def _end(self, now_ns: int) -> list[Effect]:
        round, self._round = self._round, None
        if round is None:
            return []
        late = [peer for peer in round.asked if peer not in round.answers]
        self.compared = compared = self._result(round, final=True)
        self.compared_ns = now_ns
        ahead_ns, rest_ns = compared.ahead_ns, self.config.ask_ns
        if compared.asked and (ahead_ns is None or abs(ahead_ns) > self.config.off_ns):
            rest_ns = self.config.again_ns
        links: list[Effect] = [CloseLink(peer, PURPOSE) for peer in late]
        return [*links, CancelTimer(LATE), SetTimer(ASK, rest_ns), Notify(compared)]

    def _result(self, round: _Round, *, final: bool) -> ClocksCompared:
        answers = tuple(round.answers.items())
        if self.wall.stepped_ns >= round.begun_ns:
            answers = ()
        ahead_ns = median([ahead_ns for _, ahead_ns in answers])
        return ClocksCompared(ahead_ns, answers, round.count, final)


def median(ahead: Sequence[int]) -> int | None:
    """What the middle one says; of two in the middle, the one that blames us less."""
    if not ahead:
        return None
    ordered = sorted(ahead)
    middle = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return min(middle, key=abs)
