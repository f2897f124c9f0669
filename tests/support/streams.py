"""What the tests of stream machines share: a cast of nodes, cheap signatures, a bench.

Signatures here are two hashes: made and checked in a microsecond, and as hard to come by without
the signer's name as these tests need.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from random import Random
from typing import Any, Generic, TypeVar

from shoal.base.ids import Contact, MessageId, NodeId, StreamId, node_id
from shoal.base.units import MS_NS, S_NS
from shoal.identity.message_body import Body, Position, encode_body, split_signed
from shoal.kernel.effects import (
    CancelTimer,
    CloseLink,
    Effect,
    OpenLink,
    Send,
    SetTimer,
    Verify,
)
from shoal.kernel.inputs import (
    CommandIssued,
    Input,
    LinkClosed,
    LinkFailed,
    LinkOpened,
    MessageReceived,
    Started,
    TimerFired,
    Verified,
)
from shoal.kernel.machine import Machine
from shoal.kernel.records import Rejected
from shoal.protocols.streams.commands import CatchUp, FillFromStorage, JoinStream
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.member.tracker_selection import TrackerRing
from shoal.protocols.streams.messages import Flood, Instruction, Open
from shoal.protocols.streams.signed_message import PlacedMessage, VerifiedMessage, place
from shoal.protocols.streams.wire import StreamsCodec

NOW_NS = 1_767_225_600 * S_NS
NOW_MS = NOW_NS // MS_NS
STREAM = StreamId("city/vehicles")
OTHER_STREAM = StreamId("city/air")
HOME_STREAM = StreamId("home")

CODEC = StreamsCodec()

E = TypeVar("E", bound=Effect)
M = TypeVar("M", bound=Machine)


def node(number: int) -> NodeId:
    """A node id that sorts like its number."""
    return node_id(number.to_bytes(20, "big"))


ME, TRACKER = node(1), node(2)
ALICE, BOB, CAROL, DAVE, EVE, MALLORY = (node(n) for n in range(11, 17))


def contact(id: NodeId) -> Contact:
    """Where a node of these tests is reached."""
    return Contact(id, (f"ws://{int.from_bytes(id, 'big')}:1",))


# Signed messages


def sign_as(signer: NodeId) -> Callable[[bytes], bytes]:
    """A signing function; `is_signed` knows its signatures."""

    def sign(body: bytes) -> bytes:
        digest = hashlib.sha256(signer + body).digest()
        return digest + hashlib.sha256(digest).digest() + b"\0"

    return sign


def is_signed(effect: Verify) -> bool:
    """The answer to a Verify."""
    signature, body = split_signed(effect.signed)
    return sign_as(effect.signer)(body) == signature


def message_id(
    number: int = 0,
    *,
    stream: StreamId = STREAM,
    publisher: NodeId = CAROL,
    chain: str = "c",
    timestamp_ms: int = NOW_MS,
    partition: int = 0,
) -> MessageId:
    """The id of a message of Carol's, unless told otherwise; `number` is its sequence number."""
    return MessageId(stream, partition, timestamp_ms, number, publisher, chain)


def body_of(
    id: MessageId, content: bytes = b"{}", previous: Position | None = None, content_type: int = 0
) -> Body:
    """A body as a publisher makes it."""
    return Body(id, previous, content_type, content)


def placed(
    id: MessageId, previous: Position | None = None, signed: bytes = b"signed"
) -> PlacedMessage:
    """A message as the tables of a stream know it."""
    return place(VerifiedMessage(id, previous, 0, b"", signed))


def signed_by(signer: NodeId, body: Body) -> bytes:
    """What a Flood carries."""
    encoded = encode_body(body)
    return sign_as(signer)(encoded) + encoded


def flood_of(
    body: Body, *, signer: NodeId | None = None, hops: int = 0, age_us: int = 0, seen_us: int = 0
) -> Flood:
    """A message under way, signed by its publisher unless another signer is named."""
    return Flood(hops, age_us, seen_us, signed_by(signer or body.id.publisher, body))


# Effects


def of_kind(effects: Iterable[Effect], kind: type[E]) -> list[E]:
    """The effects of one type."""
    return [effect for effect in effects if type(effect) is kind]


def sent(
    effects: Iterable[Effect], kind: type | None = None
) -> list[tuple[Any, tuple[NodeId, ...]]]:
    """(message, peers) of every Send, of one message type if named."""
    return [
        (effect.message, effect.peers)
        for effect in of_kind(effects, Send)
        if kind is None or type(effect.message) is kind
    ]


def reasons(effects: Iterable[Effect]) -> list[str]:
    """Why things were rejected."""
    return [effect.reason for effect in of_kind(effects, Rejected)]


class Bench(Generic[M]):
    """One machine on the bench: fed by hand, its timers and link claims kept as a driver would.

    After every step the machine's invariants are checked, and every message it sends has to
    come back from the wire as it is.
    """

    def __init__(self, machine: M, now_ns: int = NOW_NS) -> None:
        self.machine = machine
        self.now_ns = now_ns
        self.timers: dict[Hashable, int] = {}
        self.claims: dict[tuple[NodeId, str], bool] = {}  # (peer, purpose) -> told that it is up

    def feed(self, event: Input) -> list[Effect]:
        """One input; what the machine wants done, timers and claims already noted."""
        effects = list(self.machine.handle(event, self.now_ns))
        self.machine.check_invariants()
        for effect in effects:
            match effect:
                case SetTimer(key, delay_ns):
                    self.timers.pop(key, None)
                    self.timers[key] = self.now_ns + delay_ns
                case CancelTimer(key):
                    self.timers.pop(key, None)
                case OpenLink(to, purpose):
                    self.claims[to.node, purpose] = False
                case CloseLink(peer, purpose):
                    self.claims.pop((peer, purpose), None)
                case Send(message) if type(message) not in (FillFromStorage, CatchUp):
                    # What machines of one node say to each other goes over no wire.
                    assert CODEC.decode(CODEC.encode(message)) == message
        return effects

    def receive(self, peer: NodeId, message: Any) -> list[Effect]:
        """A message from a peer."""
        return self.feed(MessageReceived(peer, message))

    def command(self, command: Any, token: Hashable = None) -> list[Effect]:
        """The application wants something."""
        return self.feed(CommandIssued(command, token))

    def link_up(self, peer: NodeId) -> list[Effect]:
        """The link to a peer is up: whoever claimed it and does not know yet is told."""
        effects: list[Effect] = []
        for claim, told in list(self.claims.items()):
            if claim[0] == peer and not told:
                self.claims[claim] = True
                effects += self.feed(LinkOpened(*claim))
        return effects

    def link_down(self, peer: NodeId, reason: str = "closed") -> list[Effect]:
        """The link to a peer broke, or could not be made: every claim is gone with it."""
        effects: list[Effect] = []
        for claim, told in list(self.claims.items()):
            if claim[0] == peer:
                del self.claims[claim]
                event = LinkClosed(*claim, reason) if told else LinkFailed(*claim, reason)
                effects += self.feed(event)
        return effects

    def fire(self, key: Hashable) -> list[Effect]:
        """Let a timer that is set run out, and time pass until then."""
        self.now_ns = max(self.now_ns, self.timers.pop(key))
        return self.feed(TimerFired(key))

    def advance(self, delay_ns: int) -> list[Effect]:
        """Let time pass; everything that timers cause on the way, in order."""
        end_ns = self.now_ns + delay_ns
        effects: list[Effect] = []
        while due := [key for key, at_ns in self.timers.items() if at_ns <= end_ns]:
            effects += self.fire(min(due, key=self.timers.__getitem__))
        self.now_ns = end_ns
        return effects

    def answer_verifies(self, effects: Sequence[Effect]) -> list[Effect]:
        """Answer every Verify truthfully, in order; what follows from the answers."""
        found: list[Effect] = []
        for effect in of_kind(effects, Verify):
            found += self.feed(Verified(effect.token, is_signed(effect)))
        return found

    def flood(self, peer: NodeId, flood: Flood) -> list[Effect]:
        """A stream message comes in and is checked; all effects but the Verify."""
        effects = self.receive(peer, flood)
        rest = [effect for effect in effects if not isinstance(effect, Verify)]
        return rest + self.answer_verifies(effects)


# A node under test


def new_node(config: NodeConfig | None = None, *, id: NodeId = ME) -> Bench[StreamNode]:
    """A node that has not been started."""
    rng = Random(int.from_bytes(id, "big"))
    return Bench(StreamNode(id, TrackerRing([contact(TRACKER)]), sign_as(id), "c1", rng, config))


def ready_node(config: NodeConfig | None = None, *, id: NodeId = ME) -> Bench[StreamNode]:
    """A node with a link to its tracker, which it has for being in a stream of no interest."""
    bench = new_node(config, id=id)
    bench.feed(Started(contact(id).addresses))
    bench.command(JoinStream(HOME_STREAM))
    bench.link_up(TRACKER)
    bench.receive(TRACKER, instruction(1, stream=HOME_STREAM))
    return bench


def instruction(counter: int, *peers: NodeId, stream: StreamId = STREAM, epoch: int = 1) -> Any:
    """The tracker says: these are your neighbours."""
    return Instruction(stream, epoch, counter, tuple(contact(peer) for peer in peers))


def linked_node(
    *peers: NodeId, config: NodeConfig | None = None, subscribe: bool = True
) -> Bench[StreamNode]:
    """A node in the stream, with active neighbours, and all the tracker's first words said."""
    bench = ready_node(config)
    bench.command(JoinStream(STREAM, subscribe))
    link_stream(bench, STREAM, *peers)
    return bench


def link_stream(bench: Bench[StreamNode], stream: StreamId, *peers: NodeId) -> None:
    """Give a node that joined a stream its first neighbours there."""
    bench.receive(TRACKER, instruction(1, *peers, stream=stream))
    for peer in peers:
        bench.link_up(peer)
        bench.receive(peer, Open(stream, True))
    assert active(bench, stream) == peers


def active(bench: Bench[StreamNode], stream: StreamId = STREAM) -> tuple[NodeId, ...]:
    """The neighbours of a node that get its data."""
    return bench.machine.streams[stream].channel.active
