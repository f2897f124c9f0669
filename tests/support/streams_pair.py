"""Two stream nodes and one link between them that does what a test tells it to.

Time, delivery, dials and losses happen only when asked for, in any order: messages of one
direction stay in order, as on a TCP link, and everything else may overtake everything else. The
tracker is the test: it hands out instructions and reads nothing.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from shoal.base.ids import NodeId
from shoal.kernel.effects import CloseLink, Effect, OpenLink, Send, Verify
from shoal.kernel.inputs import Input, LinkClosed, LinkFailed, LinkOpened, Verified
from shoal.kernel.records import Record
from shoal.protocols.streams.commands import JoinStream, LeaveStream, Publish
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.member.neighbours import State
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.messages import Close, Open
from tests.support.streams import (
    ALICE,
    BOB,
    STREAM,
    TRACKER,
    Bench,
    instruction,
    is_signed,
    ready_node,
)

HANGUP = object()  # comes behind whatever was sent before the link broke


class End:
    """One node and its side of the link."""

    def __init__(self, id: NodeId, peer: NodeId, config: NodeConfig | None) -> None:
        self.id = id
        self.peer = peer
        self.bench: Bench[StreamNode] = ready_node(config, id=id)
        self.bench.command(JoinStream(STREAM))
        self.up = False
        self.dialling = False
        self.claims: dict[str, None] = {}
        self.arriving: deque[Any] = deque()
        self.records: list[Record] = []

    @property
    def state(self) -> State | None:
        """Where the other node is in its life, as this one sees it."""
        stream = self.bench.machine.streams.get(STREAM)
        neighbour = None if stream is None else stream.overlay.neighbours.get(self.peer)
        return None if neighbour is None else neighbour.state


class Pair:
    """Alice and Bob."""

    def __init__(self, config: NodeConfig | None = None) -> None:
        self.alice = End(ALICE, BOB, config)
        self.bob = End(BOB, ALICE, config)
        self.counter = 0

    # What a test does

    def instruct(self, end: End, *, linked: bool) -> None:
        """The tracker wants the two linked, or not, and says so to one of them."""
        self.counter += 1
        peers = (end.peer,) if linked else ()
        self._run(end, end.bench.receive(TRACKER, instruction(self.counter, *peers)))

    def deliver(self, end: End) -> bool:
        """The next message arrives; False if there is none."""
        if not end.arriving:
            return False
        message = end.arriving.popleft()
        if message is HANGUP:
            self._lose(end)
        else:
            self._run(end, end.bench.receive(end.peer, message))
        return True

    def lose(self, end: End) -> None:
        """The next message never arrives."""
        if end.arriving and isinstance(end.arriving[0], Open | Close):
            end.arriving.popleft()

    def connect(self, end: End) -> bool:
        """A dial gets through; False if there is none, or the link is up."""
        if not end.dialling:
            return False
        end.dialling = False
        if end.up:
            return False
        other = self._other(end)
        if other.up:
            self._lose(other)  # its side had not heard that the old link broke
        end.arriving.clear()
        other.arriving.clear()
        for side in (end, other):
            side.up, side.dialling = True, False
        for side in (end, other):
            self._tell(side, [LinkOpened(side.peer, purpose) for purpose in side.claims])
        return True

    def refuse(self, end: End) -> None:
        """A dial fails."""
        if end.dialling:
            end.dialling = False
            if not end.up:
                claims, end.claims = list(end.claims), {}
                self._tell(end, [LinkFailed(end.peer, claim, "refused") for claim in claims])

    def hang_up(self, end: End) -> None:
        """The link breaks; one side sees it at once, the other behind what is in flight."""
        if end.up:
            self._other(end).arriving.append(HANGUP)
            self._lose(end)

    def tick(self) -> bool:
        """The next timer of either node runs out; False if none is set."""
        due = [
            (at_ns, number, key)
            for number, end in enumerate((self.alice, self.bob))
            for key, at_ns in end.bench.timers.items()
        ]
        if not due:
            return False
        at_ns, number, key = min(due, key=lambda timer: timer[:2])
        for end in (self.alice, self.bob):
            end.bench.now_ns = max(end.bench.now_ns, at_ns)
        end = (self.alice, self.bob)[number]
        self._run(end, end.bench.fire(key))
        return True

    def leave_and_join(self, end: End) -> None:
        """The application leaves and comes back at once."""
        self._run(end, end.bench.command(LeaveStream(STREAM)))
        self._run(end, end.bench.command(JoinStream(STREAM)))

    def publish(self, end: End) -> None:
        """The application has something to say."""
        self._run(end, end.bench.command(Publish(STREAM, b"{}")))

    def settle(self, duration_ns: int) -> None:
        """Nothing is lost any more: deliver everything, and let time pass."""
        end_ns = self.alice.bench.now_ns + duration_ns
        self.drain()
        while self.alice.bench.now_ns < end_ns and self.tick():
            self.drain()

    def drain(self) -> None:
        """Everything under way arrives, in no time."""
        while self._step():
            pass

    # What a driver does

    def _step(self) -> bool:
        ends = (self.alice, self.bob)
        return any(step(end) for step in (self.connect, self.deliver) for end in ends)

    def _run(self, end: End, effects: list[Effect]) -> None:
        told: list[Input] = []
        for effect in effects:
            match effect:
                case OpenLink(contact, purpose) if contact.node == end.peer:
                    end.claims[purpose] = None
                    if end.up:
                        told.append(LinkOpened(end.peer, purpose))
                    else:
                        end.dialling = True
                case CloseLink(peer, purpose) if peer == end.peer:
                    end.claims.pop(purpose, None)
                case Send(message, peers) if end.peer in peers and end.up:
                    self._other(end).arriving.append(message)
                case Verify():
                    told.append(Verified(effect.token, is_signed(effect)))
                case Record():
                    end.records.append(effect)
        self._tell(end, told)

    def _tell(self, end: End, events: list[Input]) -> None:
        for event in events:
            self._run(end, end.bench.feed(event))

    def _lose(self, end: End) -> None:
        end.up = False
        end.arriving.clear()
        claims, end.claims = list(end.claims), {}
        self._tell(end, [LinkClosed(end.peer, claim, "broken") for claim in claims])

    def _other(self, end: End) -> End:
        return self.bob if end is self.alice else self.alice
