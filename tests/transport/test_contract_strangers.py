"""The contract of the transport port, for every transport: peers that do not play by the rules."""

from __future__ import annotations

import asyncio

import pytest

from shoal.base.units import MS_NS
from shoal.identity import SIGNATURE_BYTES
from shoal.transport.framing import CONTROL, HEAD_ROOM_BYTES, FrameReader, FrameWriter
from shoal.transport.handshake import REFUSALS, Handshake
from shoal.transport.link import ALIVE, ASK
from shoal.transport.port import DialFailed, TransportLimits
from tests.transport.recorder import until
from tests.transport.stage import (
    Actor,
    Stage,
    credentials,
    on_every_transport,
    where_links_authenticate_messages,
)
from tests.transport.wires import Wire, hung_up, shake_hands

BRIEF = TransportLimits(handshake_timeout_ns=150 * MS_NS)
FEW = TransportLimits(handshake_timeout_ns=600 * MS_NS, handshakes_max=3)


async def refused(b: Actor, wire: Wire, reason: str) -> None:
    """B hangs up, counts why, and goes on."""
    await hung_up(wire)
    await until(lambda: b.told.failures)
    assert b.told.failures == [reason]
    assert reason in REFUSALS
    assert b.told.links == []
    b.told.failures.clear()


@on_every_transport
async def test_what_is_no_handshake_is_refused(stage: Stage) -> None:
    b = await stage.actor("b")
    hello = Handshake(credentials("stranger"), b.id).hello
    for first, reason in [
        (b"\x00", "malformed"),
        (b"GET / HTTP/1.1\r\n\r\n", "malformed"),
        (hello[:-1], "malformed"),
        (hello[1:], "malformed"),
        (hello + b"\x00", "malformed"),
        (bytes(range(256)) * 10, "malformed"),
        (b"\x99" * 4000, "malformed"),
        (hello * 40, "oversized"),
        (bytes(60_000), "oversized"),
    ]:
        wire = await stage.stranger(b.address)
        wire.send(first)
        await refused(b, wire, reason)


@on_every_transport
async def test_what_is_no_proof_is_refused(stage: Stage) -> None:
    b = await stage.actor("b")
    for proof, reason in [
        (b"\x00", "malformed"),
        (bytes(SIGNATURE_BYTES + 1), "malformed"),
        (bytes(SIGNATURE_BYTES), "signature"),
        (credentials("stranger").key.sign(b"something else"), "signature"),
        (credentials("another").key.sign(b""), "signature"),
    ]:
        wire = await stage.stranger(b.address)
        handshake = Handshake(credentials("stranger"), b.id, wire.binding)
        wire.send(handshake.hello)
        wire.send(proof)
        await refused(b, wire, reason)


@on_every_transport
async def test_somebody_elses_id_is_refused(stage: Stage) -> None:
    b = await stage.actor("b")
    victim, thief = credentials("victim"), credentials("thief")
    wire = await stage.stranger(b.address, "victim")
    # The thief says what the victim would say, and signs what the victim would sign.
    handshake = Handshake(victim, b.id, wire.binding)
    wire.send(handshake.hello)
    answer = await wire.receive()
    assert answer is not None
    handshake._credentials = thief
    proof = handshake.receive(answer)
    assert proof is not None
    wire.send(proof)
    await refused(b, wire, "signature")


@on_every_transport
async def test_a_recorded_handshake_is_refused(stage: Stage) -> None:
    b = await stage.actor("b")
    wire = await stage.stranger(b.address, "honest")
    handshake = Handshake(credentials("honest"), b.id, wire.binding)
    wire.send(handshake.hello)
    hello = await wire.receive()
    assert hello is not None
    proof = handshake.receive(hello)
    assert proof is not None
    wire.send(proof)
    await until(lambda: b.told.links)
    b.told.links.clear()

    again = await stage.stranger(b.address, "honest")
    again.send(handshake.hello)
    again.send(proof)
    await refused(b, again, "signature")


@on_every_transport
async def test_a_mirror_is_refused(stage: Stage) -> None:
    b = await stage.actor("b")
    wire = await stage.stranger(b.address)
    hello = await wire.receive()
    assert hello is not None
    wire.send(hello)
    await refused(b, wire, "self")


@on_every_transport
async def test_who_says_nothing_or_half_is_cut_off_in_time(stage: Stage) -> None:
    b = await stage.actor("b", limits=BRIEF)
    for messages in (0, 1):
        wire = await stage.stranger(b.address)
        if messages:
            wire.send(Handshake(credentials("stranger"), b.id, wire.binding).hello)
        await refused(b, wire, "timeout")


@on_every_transport
async def test_only_so_many_strangers_may_wait(stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b", limits=FEW)
    early, _ = await a.dial(b)
    names = [f"stranger-{number}" for number in range(FEW.handshakes_max)]
    strangers = [await stage.stranger(b.address, name) for name in names]
    with pytest.raises(DialFailed):
        await a.transport.dial(b.address, b.id)
    assert b.told.failures == ["busy"]
    early.send(1, b"not affected")
    await until(lambda: b.told.frames)
    for wire in strangers:
        await hung_up(wire)
    await until(lambda: b.told.failures == ["busy"] + ["timeout"] * FEW.handshakes_max)
    await a.dial(b)


@on_every_transport
async def test_messages_that_the_peer_did_not_make_end_the_link(stage: Stage) -> None:
    plain = stage.authenticates_messages
    b = await stage.actor("b")
    peer = credentials("peer")

    def messages(key: bytes | None) -> list[bytes]:
        writer, made = FrameWriter(key), []
        for payload in (b"first", b"second", b"third"):
            writer.add(1, payload)
            message = writer.next_message()
            assert message is not None
            made.append(bytes(message[HEAD_ROOM_BYTES:]))
        return made

    def tampered(message: bytes) -> bytes:
        return message[:-1] + bytes([message[-1] ^ 1])

    for attack in ("garbage", "altered", "replayed", "reordered", "left out", "truncated"):
        if not plain and attack not in ("garbage", "truncated"):
            continue  # TLS sees to it
        wire = await stage.stranger(b.address, "peer")
        session = await shake_hands(wire, peer, b.id)
        one, two, three = messages(session.send_key)
        wire.send(one)
        await until(lambda: b.told.frames)
        match attack:
            case "garbage":
                wire.send(b"\xff" * 40)
            case "altered":
                wire.send(tampered(two))
            case "replayed":
                wire.send(one)
            case "reordered":
                wire.send(three)
                wire.send(two)
            case "left out":
                wire.send(three)
            case "truncated":
                wire.send(two[:-1])
        await hung_up(wire)
        await until(lambda: b.told.losses)
        (reason,) = b.told.rejections
        assert reason in (("forged",) if plain else ("malformed", "oversized"))
        assert b.told.reasons == [reason]
        assert b.told.frames == [(1, b"first")]
        for record in (b.told.rejections, b.told.losses, b.told.batches, b.told.links):
            record.clear()


@where_links_authenticate_messages
async def test_a_frame_sent_back_to_its_author_ends_the_link(stage: Stage) -> None:
    b = await stage.actor("b")
    wire = await stage.stranger(b.address, "peer")
    await shake_hands(wire, credentials("peer"), b.id)
    await until(lambda: b.told.links)
    b.told.links[0].send(1, b"echo")
    message = await wire.receive()
    assert message is not None
    wire.send(message)
    await until(lambda: b.told.losses)
    assert b.told.rejections == ["forged"]


@on_every_transport
async def test_who_falls_silent_is_asked_and_given_up(stage: Stage) -> None:
    limits = TransportLimits(idle_ping_ns=30 * MS_NS, idle_timeout_ns=300 * MS_NS)
    b = await stage.actor("b", limits=limits)
    wire = await stage.stranger(b.address, "peer")
    session = await shake_hands(wire, credentials("peer"), b.id)
    reader = FrameReader(session.receive_key, limits.frame_bytes_max)
    writer = FrameWriter(session.send_key)
    started_s = asyncio.get_running_loop().time()
    # It answers for longer than the timeout, then it does not.
    asked = 0
    while (message := await wire.receive()) is not None:
        assert reader.read(message) == [(CONTROL, ASK)]
        asked += 1
        if asked <= 12:
            writer.add(CONTROL, ALIVE)
            answer = writer.next_message()
            assert answer is not None
            wire.send(bytes(answer[HEAD_ROOM_BYTES:]))
    await until(lambda: b.told.losses)
    assert b.told.reasons == ["idle"]
    assert b.told.batches == []
    passed_s = asyncio.get_running_loop().time() - started_s
    assert passed_s > 0.6
    # Not more often than that; how often depends on the machine, as whoever was kept from running
    # gives its peer the time again.
    assert 12 < asked <= passed_s / 0.03 + 6  # the last ones come closer together


@on_every_transport
async def test_a_question_is_answered(stage: Stage) -> None:
    b = await stage.actor("b")
    wire = await stage.stranger(b.address, "peer")
    session = await shake_hands(wire, credentials("peer"), b.id)
    reader = FrameReader(session.receive_key, 1000)
    writer = FrameWriter(session.send_key)
    for _ in range(2):
        writer.add(CONTROL, ASK)
        question = writer.next_message()
        assert question is not None
        wire.send(bytes(question[HEAD_ROOM_BYTES:]))
        answer = await wire.receive()
        assert answer is not None
        assert reader.read(answer) == [(CONTROL, ALIVE)]
    assert b.told.batches == []


@on_every_transport
async def test_two_versions_talk_and_two_that_cannot_say_so(stage: Stage) -> None:
    a = await stage.actor("a", versions=(1, 2))
    for name, versions, common in [("b", (1, 1), 1), ("c", (2, 7), 2), ("d", (1, 2), 2)]:
        near, far = await a.dial(await stage.actor(name, versions=versions))
        assert near.peer.version == far.peer.version == common
        far.send(1, b"hi")
    await until(lambda: len(a.told.frames) == 3)
    late = await stage.actor("late", versions=(3, 4))
    with pytest.raises(DialFailed, match="version: we speak 1 to 2, the peer 3 to 4"):
        await a.transport.dial(late.address, late.id)
    await until(lambda: late.told.failures)
    assert late.told.failures[0] in ("version", "closed")


@on_every_transport
async def test_whoever_relays_a_handshake_gets_no_part_in_the_link(stage: Stage) -> None:
    """Mallory sits between two honest parties, as address book and as wire."""
    b = await stage.actor("b")
    alice = credentials("alice")
    wire = await stage.stranger(b.address, "alice")
    handshake = Handshake(alice, b.id, b"" if stage.authenticates_messages else b"mallory's")
    wire.send(handshake.hello)
    hello = await wire.receive()
    assert hello is not None
    proof = handshake.receive(hello)
    assert proof is not None
    wire.send(proof)
    if not stage.authenticates_messages:
        # Alice saw Mallory's certificate, and B its own: the proof does not fit.
        await refused(b, wire, "signature")
        return
    other_proof = await wire.receive()
    assert other_proof is not None
    handshake.receive(other_proof)
    assert handshake.session is not None
    await until(lambda: b.told.links)
    assert b.told.links[0].peer.node == alice.key.address
    writer = FrameWriter(handshake.session.send_key)
    writer.add(1, b"from alice")
    message = writer.next_message()
    assert message is not None
    wire.send(bytes(message[HEAD_ROOM_BYTES:]))
    await until(lambda: b.told.frames)
    forged = FrameWriter(bytes(32))
    forged.add(1, b"from mallory")
    message = forged.next_message()
    assert message is not None
    wire.send(bytes(message[HEAD_ROOM_BYTES:]))
    await until(lambda: b.told.losses)
    assert b.told.frames == [(1, b"from alice")]
    assert b.told.rejections == ["forged"]
