"""With which tracker each stream of a node is: failing over, and coming back.

Theory of operation. Every stream ranks the trackers (`ring.py`). It is with the first of them that
can be reached. When that one is lost, it is dialled once more; if it cannot be had, the stream goes
to the next, taking along its epoch, counter and neighbours, from which the next one learns the
topology. While any stream is not where it would rather be, better trackers are dialled every
`seek_ns`; one that answers is joined first, and only when it has given an instruction is the other
one left. So there is always one tracker that is obeyed, or none, and then everything stays as it
is. All nodes rank alike, so that a stream that fell in two comes together where all can go.

One that is there but answers no Join is not waited for without end either: the stream goes on to
another as soon as one is there, and comes back when the silent one speaks (`silence.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec

from shoal.base.errors import InvariantViolated, UsageError
from shoal.base.ids import Contact, NodeId, StreamId
from shoal.kernel.effects import CancelTimer, CloseLink, Effect, Send, SetTimer
from shoal.protocols.streams.config import DEGREE_MAX, NodeConfig
from shoal.protocols.streams.member.neighbours import Overlay
from shoal.protocols.streams.member.tracker_session import TRACKER, TrackerLink
from shoal.protocols.streams.messages import Instruction, Join, Leave

SEEK = "seek"
TRACKER_TIMERS = ("dial", "patience", "join", "leave")  # the first field of their keys


class Seat(msgspec.Struct):
    """Where one stream is."""

    overlay: Overlay
    order: tuple[NodeId, ...]
    silences: Silences
    at: NodeId | None = None
    """The tracker that is obeyed."""
    moving: NodeId | None = None
    """A better one that was joined and has not given an instruction yet."""
    answered: bool = False
    """The one that is obeyed has given an instruction since it was joined."""
    anew: bool = False
    """The better one refused what we know: its clock is far behind. It may count from anywhere."""

    @property
    def stream(self) -> StreamId:
        return self.overlay.stream

    def prefers(self, tracker: NodeId, now_ns: int) -> bool:
        """Whether a tracker is better than all that this stream has to do with."""
        if tracker not in self.order:
            return False
        best = self.moving if self.moving is not None else self.at
        if best is None:
            return True  # a silent one, too, is better than none
        better = self.order.index(tracker) < self.order.index(best)
        return better and not self.silences.is_passed_over(tracker, now_ns)

    def is_tired_of(self, tracker: NodeId, now_ns: int) -> bool:
        """Whether a tracker has not answered our Joins for too long."""
        linked = tracker == self.at and bool(self.overlay.active())
        return self.silences.is_too_long(tracker, now_ns, linked=linked)


class Trackers:
    """All trackers of a node, and the streams that are with them."""

    def __init__(self, node: NodeId, ring: TrackerRing, rng: Random, config: NodeConfig) -> None:
        self.own = Contact(node)
        """How this node is reached; set when it starts."""
        self.ring = ring
        self._rng = rng
        self._config = config
        self._links = {n: TrackerLink(c, rng, config) for n, c in ring.trackers.items()}
        self._seats: dict[StreamId, Seat] = {}
        self._seeking = False

    def __contains__(self, node: NodeId) -> bool:
        """Whether a node is a tracker at all."""
        return node in self._links

    def at(self, stream: StreamId) -> NodeId | None:
        """The tracker that a stream is with, if any."""
        seat = self._seats.get(stream)
        return None if seat is None else seat.at

    def check_invariants(self) -> None:
        """Raise InvariantViolated on impossible state."""
        for stream, seat in self._seats.items():
            for tracker in (seat.at, seat.moving):
                if tracker is not None and stream not in self._links[tracker].streams:
                    raise InvariantViolated(f"{stream}: its tracker does not count it")
            if seat.moving is not None and not self._links[seat.moving].up:
                raise InvariantViolated(f"{stream}: moving to a tracker that is not there")
            if seat.at is None and seat.moving is not None:
                raise InvariantViolated(f"{stream}: moving without being anywhere")
            if seat.at != seat.order[0] and not self._seeking:
                raise InvariantViolated(f"{stream}: not at its best, and nobody looks")
        for tracker, link in self._links.items():
            if link.streams and not (link.claimed or link.pausing):
                raise InvariantViolated(f"{tracker.hex()} has streams and nobody dials it")
            for stream in link.streams:
                seat_ = self._seats.get(stream)
                if seat_ is None or tracker not in (seat_.at, seat_.moving):
                    raise InvariantViolated(f"{stream}: counted by {tracker.hex()}, not there")

    def replace(self, contacts: Sequence[Contact], now_ns: int) -> list[Effect]:
        """These are the trackers from now on: streams that are with one that is gone go to another,
        and are told to it; those that would rather be with a new one look for it."""
        self.ring.replace(contacts)
        for contact in contacts:
            link = self._links.get(contact.node)
            if link is None:
                self._links[contact.node] = TrackerLink(contact, self._rng, self._config)
            else:
                link.contact = contact  # where it is dialled the next time
        gone = [node for node in self._links if node not in self.ring.trackers]
        effects: list[Effect] = []
        for seat in self._seats.values():
            seat.order = tuple([contact.node for contact in self.ring.order(seat.stream)])
            if seat.moving in gone:
                self._links[seat.moving].part(seat.stream)
                seat.moving = None
            if seat.at in gone and seat.moving is not None:
                self._links[seat.at].part(seat.stream)
                self._sit(seat, self._links[seat.moving])
            elif seat.at is None or seat.at in gone:
                effects += self._find(seat, now_ns)
            if seat.at != seat.order[0]:
                effects += self._seek_later()
        for node in gone:
            effects += self._links.pop(node).end()
        return effects

    # Streams

    def join(self, overlay: Overlay, now_ns: int) -> list[Effect]:
        """Take part in a stream: say so now, or when a tracker is there."""
        order = tuple([contact.node for contact in self.ring.order(overlay.stream)])
        seat = self._seats[overlay.stream] = Seat(overlay, order, Silences(self._config))
        return self._find(seat, now_ns)

    def leave(self, stream: StreamId) -> list[Effect]:
        """Be out of a stream."""
        seat = self._seats.pop(stream)
        effects: list[Effect] = [CancelTimer(("join", stream))]
        for tracker in (seat.at, seat.moving):
            if tracker is not None:
                effects.extend(self._links[tracker].leave(stream))
        return effects

    def instructed(
        self, tracker: NodeId, message: Instruction, now_ns: int
    ) -> tuple[bool, list[Effect]]:
        """Whether an instruction of a tracker is to be obeyed, and what else follows from it."""
        seat, link = self._seats.get(message.stream), self._links[tracker]
        if seat is None or tracker not in (seat.at, seat.moving):
            if seat is not None:
                seat.silences.spoke(tracker, now_ns)
            return False, [Send(Leave(message.stream), (tracker,))]  # our Leave was lost
        overlay = seat.overlay
        if seat.anew and tracker == seat.moving:
            overlay.forget_version()
        newer = (message.epoch, message.counter) > (overlay.epoch, overlay.counter)
        moving = tracker == seat.moving
        if message.epoch < overlay.epoch or (not newer and (moving or not seat.answered)):
            # Another tracker went beyond it meanwhile. It has to know, or its word is lost on us.
            return False, self._say_join(seat, link, now_ns)
        seat.silences.answered(tracker)
        effects: list[Effect] = []
        if moving:
            assert seat.at is not None  # there is no moving from nowhere
            # Others are moving too. Were the old tracker to close the overlay over those who have
            # gone, it would move the links of those who have not.
            effects += self._links[seat.at].leave(seat.stream, self._config.linger_ns)
            self._sit(seat, link)
        seat.answered = True
        if seat.moving is None:
            effects.append(CancelTimer(("join", seat.stream)))
        return True, effects

    def left(self, tracker: NodeId, stream: StreamId, now_ns: int) -> list[Effect]:
        """A tracker says that we are not in a stream."""
        seat, link = self._seats.get(stream), self._links[tracker]
        if seat is None or tracker not in (seat.at, seat.moving):
            effects: list[Effect] = []
            if seat is not None:
                seat.silences.spoke(tracker, now_ns)
                if link.up and seat.prefers(tracker, now_ns):
                    effects += self._draw(seat, link, now_ns)
            return effects + link.left(stream)
        # It does not know us: our Join was lost, or it is another tracker than it was.
        if tracker == seat.moving:
            seat.anew = True
            return []  # said again soon; at once, we would be refused as fast as we ask
        seat.overlay.forget_version()
        if seat.is_tired_of(tracker, now_ns):
            return []  # as long as we ask at once, it is asked for ever
        return self._say_join(seat, link, now_ns)

    def refused(self, tracker: NodeId, stream: StreamId) -> list[Effect]:
        """The tracker of a stream does not take us in: that is an answer, and no silence."""
        seat = self._seats[stream]
        seat.silences.answered(tracker)
        seat.answered = False  # no instruction of its counts any more, until it gives one again
        return [SetTimer(("join", stream), self._config.refused_ns)]

    # Links

    def opened(self, tracker: NodeId, now_ns: int) -> list[Effect]:
        """A tracker is there: those who are with it join, those who would rather be, and those
        whose own does not answer."""
        link = self._links.get(tracker)
        if link is None:
            return [CloseLink(tracker, TRACKER)]
        effects = link.opened()
        for seat in self._seats.values():
            if seat.at == tracker:
                effects += self._say_join(seat, link, now_ns)
            elif seat.prefers(tracker, now_ns):
                effects += self._draw(seat, link, now_ns)
            elif seat.silences.awaits_word(tracker):
                link.leaving[seat.stream] = None
            elif seat.moving is None and seat.at is not None and seat.is_tired_of(seat.at, now_ns):
                effects += self._go_on(seat, now_ns)
        for stream in link.leaving:  # but for those that have just joined again
            effects += link.say_leave(stream)
        return effects + link.let_go()

    def lost(self, tracker: NodeId, now_ns: int) -> list[Effect]:
        """The link to a tracker broke, or could not be made."""
        link = self._links.get(tracker)
        if link is None:
            return []  # it is none of our trackers any more
        effects = link.lost(now_ns)
        for stream in list(link.streams):
            seat = self._seats[stream]
            if seat.moving == tracker:
                seat.moving = None
                link.part(stream)
            elif seat.moving is not None:
                link.part(stream)
                self._sit(seat, self._links[seat.moving])
            elif not link.pausing:
                effects += self._find(seat, now_ns)
        return effects

    # Timers

    def timer(self, key: Any, now_ns: int) -> list[Effect]:
        """SEEK, or one of TRACKER_TIMERS, ran out."""
        if key == SEEK:
            return self._look(now_ns)
        name, of = key[0], key[1]
        if name == "join":
            return self._join_again(of, now_ns)
        link = self._links.get(key[2] if name == "leave" else of)
        if link is None:
            return []
        if name == "leave":
            return link.say_leave(of)
        return link.redial() if name == "dial" else self._give_up(of, now_ns)

    def _give_up(self, tracker: NodeId, now_ns: int) -> list[Effect]:
        link = self._links[tracker]
        effects: list[Effect] = []
        if link.give_up(now_ns):
            for stream in list(link.streams):
                effects += self._find(self._seats[stream], now_ns)
        return effects

    def _look(self, now_ns: int) -> list[Effect]:
        """Dial the trackers that streams would rather be with."""
        self._seeking = False
        wanted: dict[NodeId, None] = {}
        effects: list[Effect] = []
        for seat in self._seats.values():
            for tracker in seat.order:
                if tracker == seat.at:
                    break
                if self._links[tracker].up and seat.prefers(tracker, now_ns):
                    # It is there for another stream, or has just spoken again.
                    effects += self._draw(seat, self._links[tracker], now_ns)
                    break
                silences = seat.silences
                if silences.awaits_word(tracker) or not silences.is_passed_over(tracker, now_ns):
                    wanted[tracker] = None
        for tracker in wanted:
            effects += self._links[tracker].claim()
        better = any(seat.at != seat.order[0] for seat in self._seats.values())
        return effects + self._seek_later() if better else effects

    def _join_again(self, stream: StreamId, now_ns: int) -> list[Effect]:
        seat = self._seats.get(stream)
        effects: list[Effect] = []
        if seat is None:
            return effects
        if seat.moving is not None and seat.is_tired_of(seat.moving, now_ns):
            effects += self._pass_over(seat, seat.moving)
            seat.moving = None
        if seat.at is not None and not seat.answered and self._links[seat.at].up:
            if seat.moving is None and seat.is_tired_of(seat.at, now_ns):
                effects += self._go_on(seat, now_ns)
            else:
                effects += self._say_join(seat, self._links[seat.at], now_ns)
        if seat.moving is not None:
            effects += self._say_join(seat, self._links[seat.moving], now_ns)
        return effects

    # Steps

    def _find(self, seat: Seat, now_ns: int) -> list[Effect]:
        """Go to the best tracker that has not just failed, and is not silent."""
        if seat.at is not None:
            self._links[seat.at].part(seat.stream)
            seat.at = None
        effects: list[Effect] = []
        for tracker in seat.order:
            link = self._links[tracker]
            if not (link.failed(now_ns) or seat.silences.is_passed_over(tracker, now_ns)):
                self._sit(seat, link)
                effects = self._say_join(seat, link, now_ns) if link.up else link.claim()
                break
        return effects if seat.at == seat.order[0] else effects + self._seek_later()

    def _go_on(self, seat: Seat, now_ns: int) -> list[Effect]:
        """The tracker that a stream is with does not answer: go to the best other one that is
        there. If none is, dial one, and wait where we are."""
        silent = seat.at
        assert silent is not None  # whoever is silent is somebody
        others = [
            self._links[tracker]
            for tracker in seat.order
            if tracker != silent and not seat.silences.is_passed_over(tracker, now_ns)
        ]
        for link in others:
            if link.up:
                effects = self._pass_over(seat, silent)
                self._sit(seat, link)
                return effects + self._say_join(seat, link, now_ns) + self._seek_later()
        effects = self._say_join(seat, self._links[silent], now_ns)
        for link in others:
            if not link.failed(now_ns):
                return effects + link.claim()
        return effects

    def _pass_over(self, seat: Seat, tracker: NodeId) -> list[Effect]:
        seat.silences.pass_over(tracker)
        return self._links[tracker].leave(seat.stream)

    def _draw(self, seat: Seat, link: TrackerLink, now_ns: int) -> list[Effect]:
        """A better tracker than those that a stream has to do with is there: go to it."""
        effects: list[Effect] = []
        if seat.moving is not None:
            effects += self._links[seat.moving].leave(seat.stream)
            seat.moving = None
        old = None if seat.at is None else self._links[seat.at]
        if old is not None and old.up:
            seat.moving, seat.anew = link.node, False
            link.streams[seat.stream] = False
        else:
            if old is not None:
                effects += old.leave(seat.stream)
            self._sit(seat, link)
        return effects + self._say_join(seat, link, now_ns)

    def _sit(self, seat: Seat, link: TrackerLink) -> None:
        seat.at = seat.overlay.tracker = link.node
        seat.moving = None
        seat.answered = seat.anew = False
        link.streams.setdefault(seat.stream, False)

    def _say_join(self, seat: Seat, link: TrackerLink, now_ns: int) -> list[Effect]:
        seat.silences.joined(link.node, now_ns)
        link.streams[seat.stream] = True
        link.leaving.pop(seat.stream, None)
        seat.answered = seat.answered and link.node != seat.at
        overlay = seat.overlay
        known = (overlay.epoch, overlay.counter)
        if seat.anew and link.node == seat.moving:
            known = (0, 0)
        join = Join(seat.stream, self.own, *known, tuple(overlay.active())[:DEGREE_MAX])
        timer = SetTimer(("join", seat.stream), self._config.join_retry_ns)
        return [Send(join, (link.node,)), timer]

    def _seek_later(self) -> list[Effect]:
        if self._seeking:
            return []
        self._seeking = True
        least_ns = self._config.seek_ns * 3 // 4
        return [SetTimer(SEEK, least_ns + self._rng.randrange(self._config.seek_ns // 2))]


# Trackers that are there and do not answer the Joins of one stream.
#
# One that has not answered for a while is passed over, if another is there. From then on it hears
# Leave until it says Left: that costs it nothing, and its Left is the sign that it speaks again. So
# all whom it did not answer come back to it at about the same time, and find each other there.
#
# A tracker that says Left and still answers no Join refuses this node, or this stream. It is tried
# less and less often: each try is a Join and a Leave, which moves links there if it does take us
# in.


class _Silence(msgspec.Struct):
    asked_ns: int | None = None
    """When the first Join was said that has not been answered."""
    passed: bool = False
    """It is not waited for any more."""
    again_ns: int | None = None
    """When it may be joined again; None until it speaks."""
    wait_ns: int | None = None
    """How long it is left alone when it speaks: not at all, the first time."""


class Silences:
    """Which trackers one stream has waited for."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._of: dict[NodeId, _Silence] = {}

    def joined(self, tracker: NodeId, now_ns: int) -> None:
        """A Join was said, perhaps not the first."""
        silence = self._of.setdefault(tracker, _Silence())
        if silence.passed or silence.asked_ns is None:
            silence.asked_ns, silence.passed = now_ns, False

    def answered(self, tracker: NodeId) -> None:
        """It gave an instruction."""
        self._of.pop(tracker, None)

    def is_too_long(self, tracker: NodeId, now_ns: int, *, linked: bool) -> bool:
        """Whether a Join has been waiting for too long; with neighbours, one can wait longer."""
        silence = self._of.get(tracker)
        if silence is None or silence.asked_ns is None:
            return False
        config = self._config
        patience_ns = config.answer_linked_ns if linked else config.answer_ns
        return now_ns - silence.asked_ns >= patience_ns

    def pass_over(self, tracker: NodeId) -> None:
        """Go on without it, until it speaks and some time has passed."""
        silence = self._of.setdefault(tracker, _Silence())
        silence.passed, silence.again_ns = True, None
        if silence.wait_ns is None:
            silence.wait_ns = 0
        else:
            longer_ns = max(self._config.seek_ns, 2 * silence.wait_ns)
            silence.wait_ns = min(longer_ns, self._config.silent_max_ns)

    def spoke(self, tracker: NodeId, now_ns: int) -> None:
        """It said something else than an instruction."""
        if self.awaits_word(tracker):
            silence = self._of[tracker]
            silence.again_ns = now_ns + (silence.wait_ns or 0)

    def awaits_word(self, tracker: NodeId) -> bool:
        """Whether it was passed over, and has said nothing since."""
        silence = self._of.get(tracker)
        return silence is not None and silence.passed and silence.again_ns is None

    def is_passed_over(self, tracker: NodeId, now_ns: int) -> bool:
        """Whether it is not to be joined now."""
        silence = self._of.get(tracker)
        if silence is None or not silence.passed:
            return False
        return silence.again_ns is None or now_ns < silence.again_ns


# Which trackers a stream goes to, in which order: the same for every node with the same file.
#
# Rendezvous hashing: each stream ranks all trackers by a hash of both names. It has what a ring
# with virtual points has (streams spread evenly; a tracker that comes or goes moves only its own),
# and more: the streams of a dead tracker spread over all the others instead of falling to one
# successor, and there is no ring to build or to tune. It costs one hash per tracker when a stream
# is joined.
#
# Trackers that the owner of a stream pinned come first, in the owner's order. The others follow all
# the same: a pin says where a stream is best served, and one whose pinned trackers are all dead
# would be dead with them.


PinsOf = Callable[[StreamId], Sequence[NodeId]]


def _no_pins(stream: StreamId) -> Sequence[NodeId]:
    return ()


class TrackerRing:
    """All trackers of a network, put in order for each stream."""

    def __init__(self, trackers: Sequence[Contact], pins_of: PinsOf = _no_pins) -> None:
        self.trackers: dict[NodeId, Contact] = {}
        self._pins_of = pins_of
        self.replace(trackers)

    def replace(self, trackers: Sequence[Contact]) -> None:
        """These are all trackers from now on."""
        found = {contact.node: contact for contact in trackers}
        if not trackers or len(found) < len(trackers):
            raise UsageError("a network needs trackers, and each of them once")
        self.trackers = found

    def order(self, stream: StreamId) -> tuple[Contact, ...]:
        """Every tracker, the one to go to first in front."""
        # One that the owner pinned and this network does not list cannot be dialled.
        pins = dict.fromkeys([node for node in self._pins_of(stream) if node in self.trackers])
        others = [node for node in self.trackers if node not in pins]
        others.sort(key=lambda node: (_weight(stream, node), node))
        return tuple([self.trackers[node] for node in (*pins, *others)])


def _weight(stream: StreamId, tracker: NodeId) -> bytes:
    return hashlib.blake2b(stream.encode(), digest_size=16, key=tracker).digest()
