"""A node's side of one overlay under test: a neighbour in each state, and what is said to it."""

from __future__ import annotations

from shoal.base.ids import NodeId
from shoal.kernel.effects import Effect
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.member.neighbours import Overlay, State
from shoal.protocols.streams.messages import Close, Open, Status
from tests.support.streams import ALICE, BOB, ME, NOW_NS, STREAM, TRACKER, instruction, sent

CONFIG = NodeConfig()
OPEN, ANSWER = Open(STREAM, False), Open(STREAM, True)
CLOSE, CLOSE_ANSWER = Close(STREAM, False), Close(STREAM, True)


class Desk:
    """An overlay and the effects of its last step."""

    def __init__(self, config: NodeConfig = CONFIG) -> None:
        self.overlay = Overlay(STREAM, ME, config)
        self.overlay.tracker = TRACKER
        self.now_ns = NOW_NS
        self.counter = 0
        self.last: list[Effect] = []

    def instruct(self, *peers: NodeId) -> list[Effect]:
        self.counter += 1
        return self.done(self.overlay.instruct(instruction(self.counter, *peers), self.now_ns))

    def done(self, effects: list[Effect]) -> list[Effect]:
        self.overlay.check_invariants()
        self.last = effects
        return effects

    def link_up(self, peer: NodeId = ALICE) -> list[Effect]:
        return self.done(self.overlay.link_opened(peer))

    def link_lost(self, peer: NodeId = ALICE) -> list[Effect]:
        return self.done(self.overlay.link_lost(peer))

    def open(self, peer: NodeId = ALICE, answered: bool = False) -> list[Effect]:
        return self.done(self.overlay.peer_opened(peer, Open(STREAM, answered), self.now_ns))

    def close(self, peer: NodeId = ALICE, answer: bool = False) -> list[Effect]:
        return self.done(self.overlay.peer_closed(peer, Close(STREAM, answer)))

    def open_timeout(self) -> list[Effect]:
        self.now_ns += CONFIG.open_timeout_ns
        return self.done(self.overlay.open_timed_out(self.now_ns))

    def closing_timeout(self, peer: NodeId = ALICE) -> list[Effect]:
        return self.done(self.overlay.closing_timed_out(peer))

    def drop(self, peer: NodeId = ALICE) -> list[Effect]:
        return self.done(self.overlay.drop(peer))

    def retry(self) -> list[Effect]:
        return self.done(self.overlay.retry(self.now_ns))

    def connect(self, *peers: NodeId) -> None:
        """Be instructed, dial, and be answered by all."""
        self.instruct(*peers)
        for peer in peers:
            self.link_up(peer)
            self.open(peer, answered=True)
        assert self.overlay.active() == list(peers)

    def state(self, peer: NodeId = ALICE) -> str:
        """The state in one word: the overlay's own, told apart where it matters."""
        neighbour = self.overlay.neighbours.get(peer)
        if neighbour is None:
            return "absent"
        name = neighbour.state.name.lower()
        if neighbour.state is State.DIALLING and neighbour.peer_opened:
            return "dialling-opened"
        if neighbour.state is State.ACTIVE and not neighbour.wanted:
            return "kept"
        return name


def statuses(effects: list[Effect]) -> list[Status]:
    """What the tracker is told."""
    return [message for message, peers in sent(effects, Status) if peers == (TRACKER,)]


# A desk in each state of Alice


def absent() -> Desk:
    desk = Desk()
    desk.instruct()
    return desk


def dialling() -> Desk:
    desk = Desk()
    desk.instruct(ALICE)
    return desk


def dialling_opened() -> Desk:
    desk = dialling()
    desk.open()
    return desk


def opening() -> Desk:
    desk = dialling()
    desk.link_up()
    return desk


def active() -> Desk:
    desk = Desk()
    desk.connect(ALICE)
    return desk


def kept() -> Desk:
    """Alice is not wanted any more, but Bob, who is, has not answered yet."""
    desk = active()
    desk.instruct(BOB)
    return desk


def closing() -> Desk:
    desk = active()
    desk.instruct()
    return desk


def down() -> Desk:
    desk = dialling()
    desk.open_timeout()
    return desk
