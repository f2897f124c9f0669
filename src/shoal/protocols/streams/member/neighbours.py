"""A node's side of one stream's overlay: do what the newest instruction says.

A neighbour's life:

    DIALLING --link up, say Open--> OPENING --peer's Open--> ACTIVE --not wanted--> CLOSING
        |                              |                       |                      |
        +------- failed, timed out ----+------- link lost -----+---> DOWN      gone <-+

Data is sent to ACTIVE neighbours only: the peer's Open proves that its own instruction names us,
so nothing is sent to where it would be dropped. Links are made before others are broken:
unwanted neighbours stay ACTIVE until every wanted one is ACTIVE or DOWN (the instruction is
settled), and after our Close we take what is in flight until theirs: that of OPENING ones too, who
may have our Open. One status answers each handled instruction; DOWN neighbours are tried again
every `retry_ns`, which handles it again.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

import msgspec

from shoal.base.errors import InvariantViolated
from shoal.base.ids import Contact, NodeId, StreamId
from shoal.kernel.effects import CancelTimer, CloseLink, Effect, OpenLink, Send, SetTimer
from shoal.kernel.records import InstructionHandled
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.messages import Close, Instruction, Open, Status


class State(Enum):
    """Where a neighbour is in its life."""

    DIALLING = auto()
    OPENING = auto()
    ACTIVE = auto()
    CLOSING = auto()
    DOWN = auto()


class Neighbour(msgspec.Struct):
    """One neighbour in one stream."""

    contact: Contact
    state: State
    since_ns: int
    """When it was last dialled."""
    wanted: bool = True
    peer_opened: bool = False
    dropped: bool = False
    """It misbehaved: only a new instruction brings it back."""


class Overlay:
    """Neighbours of this node in one stream."""

    def __init__(self, stream: StreamId, node: NodeId, config: NodeConfig) -> None:
        self.stream = stream
        self.tracker = node
        """Who is told what became of instructions: set by whoever takes them."""
        self.epoch = 0
        self.counter = 0
        self.instructed = False
        self.handled = False
        """Some instruction was handled: this node has its place."""
        self.neighbours: dict[NodeId, Neighbour] = {}
        self._node = node
        self._config = config
        self._settled = True
        self._early: dict[NodeId, int] = {}  # peers that said Open before we were instructed

    # Instructions

    def instruct(self, instruction: Instruction, now_ns: int) -> list[Effect]:
        """Take the newest instruction; older ones are ignored."""
        version = (instruction.epoch, instruction.counter)
        if self.instructed and version <= (self.epoch, self.counter):
            if version == (self.epoch, self.counter) and self._settled:
                return [self._status()]  # the tracker did not hear us
            return []
        self.instructed = True
        self.epoch, self.counter = version
        wanted = {c.node: c for c in instruction.neighbours if c.node != self._node}
        effects: list[Effect] = []
        for peer, neighbour in list(self.neighbours.items()):
            neighbour.wanted = peer in wanted
            # Who is not linked yet must not hold up those who are wanted.
            if not neighbour.wanted and neighbour.state is State.DIALLING:
                effects.extend(self._release(peer))
            elif not neighbour.wanted and neighbour.state is State.OPENING:
                effects.extend(self._close(peer, neighbour))  # it may have our Open, and send
        for peer, contact in wanted.items():
            known = self.neighbours.get(peer)
            if known is None or known.state in (State.DOWN, State.CLOSING):
                effects.extend(self._dial(contact, now_ns))
            else:
                known.contact = contact
        return effects + self._begin(now_ns)

    def forget_version(self) -> None:
        """Whoever instructs us next counts anew."""
        self.epoch = self.counter = 0

    def retry(self, now_ns: int) -> list[Effect]:
        """Try the missing neighbours of the last instruction again."""
        effects: list[Effect] = []
        for neighbour in list(self.neighbours.values()):
            if neighbour.state is State.DOWN and neighbour.wanted and not neighbour.dropped:
                effects.extend(self._dial(neighbour.contact, now_ns))
        if effects:
            effects += self._begin(now_ns)
        elif self._settled and any(n.dropped and n.wanted for n in self.neighbours.values()):
            effects.append(self._status())  # we want another, and nobody has heard us
        return [*effects, SetTimer(("retry", self.stream), self._config.retry_ns)]

    def open_timed_out(self, now_ns: int) -> list[Effect]:
        """What has been waited for long enough has failed."""
        effects: list[Effect] = []
        due_ns = now_ns - self._config.open_timeout_ns
        for peer, neighbour in self._waiting():
            if neighbour.since_ns <= due_ns:
                neighbour.state = State.DOWN
                neighbour.peer_opened = False
                effects.append(CloseLink(peer, self.stream))
        return effects + self._open_timer(now_ns) + self._settle_if_done()

    def timer(self, key: tuple[Any, ...], now_ns: int) -> list[Effect]:
        """A timer of this overlay ran out."""
        match key[0]:
            case "open-timeout":
                return self.open_timed_out(now_ns)
            case "open-retry":
                return self.say_open_again()
            case "retry":
                return self.retry(now_ns)
            case _:
                return self.closing_timed_out(key[2])

    # Links

    def link_opened(self, peer: NodeId) -> list[Effect]:
        """The link to a neighbour is up: offer it this stream."""
        neighbour = self.neighbours.get(peer)
        if neighbour is None:
            return [CloseLink(peer, self.stream)]  # not wanted any more: give the claim back
        if neighbour.state is not State.DIALLING:
            return []
        neighbour.state = State.OPENING
        effects: list[Effect] = [self._say_open(peer, neighbour)]
        if neighbour.peer_opened:
            neighbour.state = State.ACTIVE
            return effects + self._settle_if_done()
        return [*effects, SetTimer(("open-retry", self.stream), self._config.open_retry_ns)]

    def link_lost(self, peer: NodeId) -> list[Effect]:
        """A dial failed or a link broke; the claim is gone with it."""
        neighbour = self.neighbours.get(peer)
        if neighbour is None:
            return []
        if neighbour.wanted:
            neighbour.state = State.DOWN
            neighbour.peer_opened = False
        else:
            del self.neighbours[peer]
        return [CancelTimer(("closing", self.stream, peer)), *self._settle_if_done()]

    # Open and Close

    def peer_opened(self, peer: NodeId, message: Open, now_ns: int) -> list[Effect]:
        """A peer takes us as its neighbour."""
        neighbour = self.neighbours.get(peer)
        if neighbour is None or neighbour.state is State.CLOSING:
            self._remember_early(peer, now_ns)
            return []
        if neighbour.state is State.DOWN:
            if not neighbour.wanted or neighbour.dropped:
                return []
            self._remember_early(peer, now_ns)
            return self._dial(neighbour.contact, now_ns) + self._begin(now_ns)
        neighbour.peer_opened = True
        if neighbour.state is State.DIALLING:
            return []  # our own LinkOpened is on its way
        effects: list[Effect] = []
        if not message.answered:
            effects.append(self._say_open(peer, neighbour))
        neighbour.state = State.ACTIVE
        return effects + self._settle_if_done()

    def peer_closed(self, peer: NodeId, message: Close) -> list[Effect]:
        """A peer sends us no more data of this stream."""
        neighbour = self.neighbours.get(peer)
        if neighbour is not None and neighbour.state is State.CLOSING:
            self._early.pop(peer, None)
            return self._release(peer)
        if message.answer:
            return []  # to a Close of ours that we have taken back since
        self._early.pop(peer, None)
        if neighbour is None or neighbour.state is State.DOWN:
            return []
        if neighbour.state is State.DIALLING:
            neighbour.peer_opened = False
            return []
        # Its instruction no longer names us, and ours will follow. If it does not,
        # the retry will find out.
        effects = [*self._part(peer, neighbour, answer=True)]
        if not neighbour.wanted:
            del self.neighbours[peer]
        return effects + self._settle_if_done()

    def say_open_again(self) -> list[Effect]:
        """Open may have been lost: say it to those who have not answered."""
        opening = [p for p, n in self.neighbours.items() if n.state is State.OPENING]
        if not opening:
            return []
        return [
            Send(Open(self.stream, False), tuple(opening)),
            SetTimer(("open-retry", self.stream), self._config.open_retry_ns),
        ]

    def closing_timed_out(self, peer: NodeId) -> list[Effect]:
        """No Close came back: let go all the same."""
        neighbour = self.neighbours.get(peer)
        if neighbour is None or neighbour.state is not State.CLOSING:
            return []
        return self._release(peer)

    def drop(self, peer: NodeId) -> list[Effect]:
        """Part with a neighbour that misbehaves, wanted or not."""
        neighbour = self.neighbours.get(peer)
        if neighbour is None or neighbour.state is State.DOWN:
            return []
        effects = self._part(peer, neighbour, answer=False)
        neighbour.dropped = True
        if not neighbour.wanted:
            del self.neighbours[peer]
        return effects + self._settle_if_done()

    def leave(self) -> list[Effect]:
        """Part with everybody: this node leaves the stream."""
        effects: list[Effect] = []
        told = (State.OPENING, State.ACTIVE)  # whoever may have our Open
        linked = tuple([p for p, n in self.neighbours.items() if n.state in told])
        if linked:
            effects.append(Send(Close(self.stream, False), linked))
        for peer, neighbour in self.neighbours.items():
            if neighbour.state is not State.DOWN:
                effects.append(CloseLink(peer, self.stream))
            effects.append(CancelTimer(("closing", self.stream, peer)))
        self.neighbours.clear()
        effects.extend(CancelTimer((name, self.stream)) for name in _TIMERS)
        return effects

    def active(self) -> list[NodeId]:
        """Neighbours that get data, in a stable order."""
        return [p for p, n in self.neighbours.items() if n.state is State.ACTIVE]

    def heard(self) -> frozenset[NodeId]:
        """Neighbours that data is taken from: all but those who are down."""
        return frozenset(p for p, n in self.neighbours.items() if n.state is not State.DOWN)

    def check_invariants(self) -> None:
        """Raise InvariantViolated on impossible state."""
        if self._node in self.neighbours:
            raise InvariantViolated(f"{self.stream}: a node is its own neighbour")
        for peer, neighbour in self.neighbours.items():
            if neighbour.state is State.ACTIVE and not neighbour.peer_opened:
                raise InvariantViolated(f"{self.stream}: {peer.hex()} active without its Open")
        if len(self._early) > self._config.early_opens_max:
            raise InvariantViolated(f"{self.stream}: {len(self._early)} early opens")

    # Steps

    def _dial(self, contact: Contact, now_ns: int) -> list[Effect]:
        peer = contact.node
        said_ns = self._early.pop(peer, None)
        fresh = said_ns is not None and now_ns - said_ns < self._config.open_timeout_ns
        known = self.neighbours.get(peer)
        if known is not None and known.state is State.CLOSING:
            # Our Close is on its way and the peer will take it for our last word:
            # begin anew, and let its next Open say that it did too.
            fresh = False
        self.neighbours[peer] = Neighbour(contact, State.DIALLING, now_ns, peer_opened=fresh)
        return [CancelTimer(("closing", self.stream, peer)), OpenLink(contact, self.stream)]

    def _begin(self, now_ns: int) -> list[Effect]:
        self._settled = False
        return self._open_timer(now_ns) + self._settle_if_done()

    def _waiting(self) -> list[tuple[NodeId, Neighbour]]:
        states = (State.DIALLING, State.OPENING)
        return [(p, n) for p, n in self.neighbours.items() if n.state in states]

    def _open_timer(self, now_ns: int) -> list[Effect]:
        """Fires for whoever has waited longest: new instructions give nobody more time."""
        waiting = self._waiting()
        if not waiting:
            return []
        oldest_ns = min(neighbour.since_ns for _, neighbour in waiting)
        wait_ns = max(0, oldest_ns + self._config.open_timeout_ns - now_ns)
        return [SetTimer(("open-timeout", self.stream), wait_ns)]

    def _settle_if_done(self) -> list[Effect]:
        if self._settled or self._waiting():
            return []
        self._settled = self.handled = True
        effects: list[Effect] = [
            CancelTimer(("open-timeout", self.stream)),
            SetTimer(("retry", self.stream), self._config.retry_ns),
        ]
        for peer, neighbour in list(self.neighbours.items()):
            if not neighbour.wanted:
                effects.extend(self._close(peer, neighbour))
        wanted = [n for n in self.neighbours.values() if n.wanted]
        connected = sum(n.state is State.ACTIVE for n in wanted)
        handled = InstructionHandled(self.stream, self.epoch, self.counter, len(wanted), connected)
        return [*effects, self._status(), handled]

    def _close(self, peer: NodeId, neighbour: Neighbour) -> list[Effect]:
        if neighbour.state is State.DOWN:
            del self.neighbours[peer]
            return []
        if neighbour.state is State.CLOSING:
            return []
        neighbour.state = State.CLOSING
        timer = SetTimer(("closing", self.stream, peer), self._config.close_timeout_ns)
        return [Send(Close(self.stream, False), (peer,)), timer]

    def _part(self, peer: NodeId, neighbour: Neighbour, *, answer: bool) -> list[Effect]:
        neighbour.state = State.DOWN
        neighbour.peer_opened = False
        return [
            CancelTimer(("closing", self.stream, peer)),
            Send(Close(self.stream, answer), (peer,)),
            CloseLink(peer, self.stream),
        ]

    def _release(self, peer: NodeId) -> list[Effect]:
        del self.neighbours[peer]
        return [CancelTimer(("closing", self.stream, peer)), CloseLink(peer, self.stream)]

    def _status(self) -> Send:
        connected = [p for p in self.active() if self.neighbours[p].wanted]
        status = Status(self.stream, self.epoch, self.counter, tuple(connected))
        return Send(status, (self.tracker,))

    def _say_open(self, peer: NodeId, neighbour: Neighbour) -> Send:
        return Send(Open(self.stream, neighbour.peer_opened), (peer,))

    def _remember_early(self, peer: NodeId, now_ns: int) -> None:
        while len(self._early) >= self._config.early_opens_max and peer not in self._early:
            del self._early[next(iter(self._early))]
        self._early[peer] = now_ns


_TIMERS = ("open-timeout", "open-retry", "retry")
