"""Frames that were changed and still are messages: every machine takes them, and goes on."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from shoal.base.errors import RemoteError
from shoal.base.units import MS_NS, S_NS
from shoal.kernel.inputs import Started
from shoal.kernel.records import Delivered, Rejected
from shoal.protocols.streams.commands import JoinStream
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.messages import (
    NODE_MESSAGES,
    TRACKER_MESSAGES,
    Close,
    FindHolders,
    FindStorage,
    Flood,
    Instruction,
    Join,
    Leave,
    Left,
    Open,
    Ping,
    Pong,
    Report,
    Rtt,
    Status,
)
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.protocols.streams.tracker.tracker import Tracker
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    CODEC,
    EVE,
    ME,
    OTHER_STREAM,
    STREAM,
    TRACKER,
    Bench,
    body_of,
    contact,
    flood_of,
    instruction,
    linked_node,
    message_id,
    node,
    of_kind,
    sent,
)

FRAMES = 5000


def mutate(rng: Random, frame: bytes, other: bytes) -> bytes:
    """A frame with a few things wrong with it, or none."""
    changed = bytearray(frame)
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(changed)) if changed else 0
        match rng.randrange(6):
            case 0 if changed:
                changed[at] ^= 1 << rng.randrange(8)
            case 1 if changed:
                changed[at] = rng.randrange(256)
            case 2:
                del changed[at : at + rng.randrange(1, 4)]
            case 3:
                changed[at:at] = rng.randbytes(rng.randrange(1, 4))
            case 4:
                start = rng.randrange(len(other))
                changed[at : at + 8] = other[start : start + 8]
            case _:
                changed[at : at + 9] = b"\xcf" + rng.choice([b"\x7f" + b"\xff" * 7, b"\0" * 8])
    return bytes(changed)


def hostile_frames(rng: Random, pool: list[Any], kinds: tuple[type, ...]) -> Iterator[Any]:
    """Thousands of mutated frames; those that are a message which such a machine gets."""
    frames = [CODEC.encode(message) for message in pool]
    for _ in range(FRAMES):
        frame = mutate(rng, rng.choice(frames), rng.choice(frames))
        try:
            message = CODEC.decode(frame)
        except RemoteError:
            continue  # the link counts it
        if type(message) in kinds:
            yield message


def test_no_frame_of_a_peer_harms_a_node(seed: int) -> None:
    rng = Random(seed)
    bench = linked_node(ALICE, BOB, config=NodeConfig(offences_max=100))
    floods = [flood_of(body_of(message_id(n), chain_content(n))) for n in range(40)]
    pool = [
        *floods,
        *(Open(STREAM, answered) for answered in (True, False)),
        *(Close(STREAM, answer) for answer in (True, False)),
        Open(OTHER_STREAM, False),
        Ping(1),
        *(Pong(nonce) for nonce in range(4)),
        instruction(2, EVE),
        Left(STREAM),
    ]
    taken, rejected = 0, 0
    for message in hostile_frames(rng, pool, NODE_MESSAGES):
        effects = bench.receive(rng.choice((ALICE, BOB, EVE)), message)
        effects += bench.answer_verifies(effects)
        taken += 1
        rejected += len(of_kind(effects, Rejected))
        if rng.random() < 0.1:
            bench.link_up(rng.choice((ALICE, BOB)))
        if rng.random() < 0.02:
            bench.link_down(rng.choice((ALICE, BOB)))
        if rng.random() < 0.05:
            bench.advance(rng.randrange(3 * S_NS))
    assert taken > FRAMES // 4
    assert rejected > FRAMES // 20
    # The tracker still rules, and messages still flow.
    for counter, peers in ((2, ()), (3, (ALICE, BOB))):
        bench.receive(TRACKER, instruction(counter, *peers))
        for peer in peers:
            bench.link_up(peer)
            bench.receive(peer, Open(STREAM, True))
        bench.advance(10 * S_NS)
    id = message_id(99, timestamp_ms=bench.now_ns // MS_NS, chain="after")
    effects = bench.flood(ALICE, flood_of(body_of(id)))
    assert [record.message for record in of_kind(effects, Delivered)] == [id]
    assert sent(effects, Flood)[0][1] == (BOB,)


def chain_content(number: int) -> bytes:
    return b"%d" % number


def test_no_frame_of_its_tracker_crashes_a_node(seed: int) -> None:
    rng = Random(seed)
    bench = linked_node(ALICE, BOB)
    pool = [
        *(instruction(n, *peers) for n, peers in enumerate(((ALICE,), (BOB, EVE), (), (ME,)))),
        instruction(1, ALICE, stream=OTHER_STREAM),
        Left(STREAM),
    ]
    for message in hostile_frames(rng, pool, NODE_MESSAGES):
        bench.receive(TRACKER, message)
        bench.link_up(rng.choice((ALICE, BOB, EVE)))
        if rng.random() < 0.1:
            bench.advance(rng.randrange(3 * S_NS))
    assert bench.command(JoinStream(OTHER_STREAM))


def test_no_frame_harms_a_tracker(seed: int) -> None:
    rng = Random(seed)
    bench = Bench(Tracker(lambda stream: RandomPolicy(4, Random(seed))))
    bench.feed(Started())
    members = [node(number) for number in range(100, 112)]
    for peer in members:
        bench.receive(peer, Join(STREAM, contact(peer), 0, 0, ()))
        bench.link_up(peer)
    tracker = bench.machine
    taken, rejected = 0, 0
    pool: list[Any] = []
    for counter in range(1, 40):
        some = tuple(rng.sample(members, 4))
        pool.append(Status(STREAM, tracker.epoch, counter, some))
        pool.append(Report(STREAM, (Rtt(some[0], 1000),), some[1:2], some[2:3]))
        pool.append(Join(STREAM, contact(some[0]), tracker.epoch, counter, some[1:]))
    pool += [
        FindStorage(STREAM),
        FindHolders(1, STREAM, members[0]),
        FindHolders(2, OTHER_STREAM, ALICE),
        Leave(STREAM),
        Leave(OTHER_STREAM),
        Join(OTHER_STREAM, contact(ALICE), 0, 0, ()),
    ]
    for message in hostile_frames(rng, pool, TRACKER_MESSAGES):
        peer = rng.choice((*members, ALICE, EVE))
        if isinstance(message, Join) and rng.random() < 0.5:
            peer = message.contact.node  # a node may well name itself
        effects = bench.receive(peer, message)
        taken += 1
        rejected += len(of_kind(effects, Rejected))
        bench.link_up(peer)
        if rng.random() < 0.03:
            bench.link_down(rng.choice(members))
        if rng.random() < 0.05:
            bench.advance(rng.randrange(3 * S_NS))
    assert taken > FRAMES // 4
    assert rejected > FRAMES // 20
    bench.advance(60 * S_NS)
    [(order, _)] = [
        (message, peers)
        for message, peers in sent(
            bench.receive(CAROL, Join(STREAM, contact(CAROL), 0, 0, ())), Instruction
        )
        if peers == (CAROL,)
    ]
    assert order.stream == STREAM
