"""What is WebRTC's own: who offers, who sits in between, and peers that are gone or break rules."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack

import msgspec
import pytest
import webrtc

from shoal.base.errors import UsageError
from shoal.base.ids import NodeId
from shoal.base.units import KIB, MS_NS
from shoal.transport.port import DialFailed, TransportLimits
from shoal.transport.webrtc import Call, WebRTCTransport
from shoal.transport.webrtc_channel import CREDIT, LAST, PART, WINDOW_BYTES
from shoal.transport.webrtc_signals import (
    Answer,
    Candidate,
    End,
    More,
    Offer,
    Ring,
    SignalMessage,
    encode_signal,
)
from tests.transport.callee import ADDRESS_OF_CHILD, StdioPlace
from tests.transport.exchange import Exchange
from tests.transport.mallory import Mallory
from tests.transport.recorder import Recorder, until
from tests.transport.signals import WebRTCWire
from tests.transport.stage import Actor, Stage, credentials, gathered, perform
from tests.transport.wires import shake_hands

KIND = "webrtc-uvloop"


async def pair(stage: Stage, limits: TransportLimits | None = None) -> tuple[Actor, Actor]:
    """Two actors, the one with the smaller id first."""
    actors = [await stage.actor(name, limits=limits) for name in ("a", "b")]
    smaller, larger = sorted(actors, key=lambda actor: actor.id)
    return smaller, larger


def kinds_passed(exchange: Exchange) -> list[str]:
    return [type(message).__name__ for _, _, message in exchange.passed]


def test_the_smaller_id_offers_whoever_dials() -> None:
    async def scenario(stage: Stage) -> None:
        smaller, larger = await pair(stage)
        for caller, callee in ((smaller, larger), (larger, smaller)):
            near, far = await caller.dial(callee)
            assert (near.dialled, far.dialled) == (True, False)
            offers = [s for s, _, message in stage.exchange.passed if isinstance(message, Offer)]
            assert offers == [smaller.id]
            assert ("Ring" in kinds_passed(stage.exchange)) == (caller is larger)
            stage.exchange.passed.clear()
            near.send(1, b"x")
            await until(lambda callee=callee: callee.told.frames)  # type: ignore[misc]

    perform(KIND, scenario)


def test_two_that_call_each_other_at_once_have_one_link() -> None:
    async def scenario(stage: Stage) -> None:
        smaller, larger = await pair(stage)
        one, other = await gathered(
            smaller.transport.dial(larger.address, larger.id),
            larger.transport.dial(smaller.address, smaller.id),
        )
        assert (one.dialled, other.dialled) == (True, False)
        assert (smaller.told.links, larger.told.links) == ([], [])
        one.send(1, b"x")
        other.send(1, b"y")
        await until(lambda: smaller.told.frames and larger.told.frames)
        assert sum(isinstance(message, Offer) for _, _, message in stage.exchange.passed) == 1

    perform(KIND, scenario)


def test_a_dial_that_waits_for_the_others_call_hears_of_its_failure() -> None:
    async def scenario(stage: Stage) -> None:
        brief = TransportLimits(handshake_timeout_ns=300 * MS_NS)
        smaller, larger = await pair(stage, brief)
        stage.exchange.alter = lambda sender, receiver, message: (
            None if isinstance(message, Answer) else message
        )
        outcomes = await asyncio.gather(
            smaller.transport.dial(larger.address, larger.id),
            larger.transport.dial(smaller.address, smaller.id),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [DialFailed] * 2
        stage.exchange.alter = lambda sender, receiver, message: message
        near, _ = await larger.dial(smaller)
        near.send(1, b"it was only for a while")
        await until(lambda: smaller.told.frames)

    perform(KIND, scenario)


def test_who_hangs_up_when_the_channel_opens_has_only_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine has forgotten its certificate by then: there is nothing to be bound to."""

    async def scenario(stage: Stage) -> None:
        smaller, larger = await pair(stage)
        with monkeypatch.context() as patch:
            patch.setattr(webrtc.RTCDtlsTransport, "get_remote_certificates", lambda _: [])
            with pytest.raises(DialFailed, match="hung up"):
                await smaller.transport.dial(larger.address, larger.id)
        near, _ = await larger.dial(smaller)
        near.send(1, b"it was only for a while")
        await until(lambda: smaller.told.frames)

    perform(KIND, scenario)


def test_whoever_swaps_fingerprints_gets_no_link() -> None:
    """Each hears the other's handshake, signed by the right key, over the wrong channel."""

    async def scenario(stage: Stage) -> None:
        for caller_is_smaller in (True, False):
            smaller, larger = await pair(stage)
            mallory = Mallory(stage.exchange, smaller.id, larger.id)
            stage.exchange.alter = mallory.alter
            caller, callee = (smaller, larger) if caller_is_smaller else (larger, smaller)
            with pytest.raises(DialFailed, match=r"over this channel|hung up"):
                await caller.transport.dial(callee.address, callee.id)
            await until(lambda callee=callee: callee.told.failures)  # type: ignore[misc]
            assert mallory.passed_on >= 3, "it was in between"
            assert callee.told.failures[0] in ("signature", "closed")
            assert (caller.told.links, callee.told.links) == ([], [])
            mallory.close()

    perform(KIND, scenario)


def test_a_changed_fingerprint_alone_makes_no_connection() -> None:
    async def scenario(stage: Stage) -> None:
        smaller, larger = await pair(stage, TransportLimits(handshake_timeout_ns=500 * MS_NS))

        def swap(_: NodeId, __: NodeId, message: SignalMessage) -> SignalMessage:
            if not isinstance(message, Offer | Answer):
                return message
            wrong = msgspec.structs.replace(message.description, fingerprint=bytes(32))
            return msgspec.structs.replace(message, description=wrong)

        stage.exchange.alter = swap
        with pytest.raises(DialFailed):
            await smaller.transport.dial(larger.address, larger.id)
        assert larger.told.links == []

    perform(KIND, scenario)


def test_wrong_addresses_cost_the_link_and_nothing_else() -> None:
    """As a STUN server would tell, or whoever passes signals on."""

    async def scenario(stage: Stage) -> None:
        smaller, larger = await pair(stage, TransportLimits(handshake_timeout_ns=500 * MS_NS))

        def mislead(_: NodeId, __: NodeId, message: SignalMessage) -> SignalMessage:
            if isinstance(message, Ring | End):
                return message
            nowhere = Candidate("1", 1, "127.0.0.1", 9, "srflx")
            return msgspec.structs.replace(message, candidates=(nowhere,))

        stage.exchange.alter = mislead
        with pytest.raises(DialFailed):
            await smaller.transport.dial(larger.address, larger.id)
        stage.exchange.alter = lambda sender, receiver, message: message
        near, _ = await smaller.dial(larger)
        near.send(1, b"x")
        await until(lambda: larger.told.frames)

    perform(KIND, scenario)


def test_somebody_else_than_the_caller_is_refused() -> None:
    """The exchange lies about who calls: the callee knows whom to expect, as the caller does."""

    async def scenario(stage: Stage) -> None:
        _, larger = await pair(stage)
        wire = await WebRTCWire.open(stage.exchange, larger.id, NodeId(bytes(20)))
        with pytest.raises(AssertionError, match="hung up"):
            await shake_hands(wire, credentials("peer"), larger.id)
        assert larger.told.failures == ["wrong-peer"]
        assert larger.told.links == []
        wire.hang_up()

    perform(KIND, scenario)


def test_signals_that_make_no_sense_are_counted() -> None:
    async def scenario(stage: Stage) -> None:
        smaller, larger = await pair(stage)
        place = stage.exchange.places[smaller.id]
        place.receive(larger.id, b"\xff")
        place.receive(larger.id, bytes(5000))
        assert smaller.told.failures == ["malformed"] * 2
        smaller.told.failures.clear()
        # The smaller id never rings.
        stage.exchange.deliver(smaller.id, larger.id, encode_signal(Ring(b"12345678")))
        await until(lambda: larger.told.failures == ["malformed"])
        for stray in (End(b"12345678"), More(b"12345678", ())):
            stage.exchange.deliver(smaller.id, larger.id, encode_signal(stray))
        near, _ = await smaller.dial(larger)
        near.send(1, b"x")
        await until(lambda: larger.told.frames)
        assert larger.told.failures == ["malformed"]

    perform(KIND, scenario)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (bytes((LAST,)) + b"\xff" * 40, ("oversized", "malformed")),
        (bytes((PART,)) + bytes(100), ("malformed",)),
        (bytes((LAST,)), ("malformed",)),
        (bytes((CREDIT,)) + (1 << 40).to_bytes(8, "big"), ("malformed",)),
        (bytes((CREDIT,)) + b"short", ("malformed",)),
        (b"\x09nonsense", ("malformed",)),
        (b"", ("malformed",)),
        ("text", ("malformed",)),
    ],
    ids=["frames", "tiny-pieces", "nothing", "credit", "short-credit", "kind", "empty", "text"],
)
def test_a_peer_that_breaks_the_rules_of_the_channel_loses_its_link(
    said: bytes | str, reason: tuple[str, ...]
) -> None:
    async def scenario(stage: Stage) -> None:
        b = await stage.actor("b")
        peer = credentials("peer")
        wire = await WebRTCWire.open(stage.exchange, b.id, peer.key.address)
        await shake_hands(wire, peer, b.id)
        await until(lambda: b.told.links)
        wire.channel.send(said)
        await until(lambda: b.told.losses)
        assert b.told.rejections[0] in reason
        wire.hang_up()

    perform(KIND, scenario)


def test_who_sends_without_credit_is_cut_off() -> None:
    async def scenario(stage: Stage) -> None:
        limits = TransportLimits(frame_bytes_max=32 * KIB)
        b = await stage.actor("b", limits=limits)
        peer = credentials("peer")
        wire = await WebRTCWire.open(stage.exchange, b.id, peer.key.address)
        await shake_hands(wire, peer, b.id)
        await until(lambda: b.told.links)
        b.told.links[0].pause_reading()
        frame = b"\x01" + (16_000).to_bytes(4, "big") + bytes(16_000)
        for _ in range(2 * WINDOW_BYTES // len(frame)):
            wire.send(frame)
        await until(lambda: b.told.losses)
        assert b.told.rejections == ["oversized"]
        wire.hang_up()

    perform(KIND, scenario)


def test_a_second_channel_is_one_too_many() -> None:
    async def scenario(stage: Stage) -> None:
        b = await stage.actor("b")
        peer = credentials("peer")
        wire = await WebRTCWire.open(stage.exchange, b.id, peer.key.address)
        await shake_hands(wire, peer, b.id)
        await until(lambda: b.told.links)
        wire.connection.create_data_channel("another")
        await until(lambda: b.told.losses)
        assert b.told.rejections == ["malformed"]
        wire.hang_up()

    perform(KIND, scenario)


def test_nothing_of_a_call_outlives_its_link() -> None:
    async def scenario(stage: Stage) -> None:
        before = calls_alive()
        smaller, larger = await pair(stage)
        for caller, callee in ((smaller, larger), (larger, smaller)):
            link = await caller.transport.dial(callee.address, callee.id)
            link.close("done")
        del link
        await gathered(smaller.transport.close(), larger.transport.close())
        for actor in (smaller, larger):
            actor.told.links.clear()
            actor.told.losses.clear()
        await until(lambda: calls_alive() <= before, 5)

    perform(KIND, scenario)


def calls_alive() -> int:
    gc.collect()
    return sum(isinstance(one, Call) for one in gc.get_objects())


def test_nobody_calls_itself_and_one_listens_once() -> None:
    async def scenario(stage: Stage) -> None:
        a = await stage.actor("a")
        with pytest.raises(DialFailed, match="self"):
            await a.transport.dial(a.address, a.id)
        with pytest.raises(UsageError, match="once"):
            await a.transport.listen("webrtc:")

    perform(KIND, scenario)


def test_a_peer_that_is_killed_is_noticed() -> None:
    async def scenario(stage: Stage) -> None:
        limits = TransportLimits(idle_ping_ns=100 * MS_NS, idle_timeout_ns=400 * MS_NS)
        told = Recorder()
        command = [sys.executable, "-m", "tests.transport.callee"]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        async with AsyncExitStack() as exits:
            exits.enter_context(child)
            exits.callback(child.kill)
            assert child.stdout is not None
            assert child.stdin is not None
            place = StdioPlace(child.stdout.fileno(), child.stdin.fileno())
            exits.callback(place.close)
            transport = await exits.enter_async_context(
                WebRTCTransport(credentials("a"), told, limits, signalling=place, loopback=True)
            )
            link = await transport.dial("webrtc:", ADDRESS_OF_CHILD)
            link.send(1, b"echo")
            await until(lambda: told.frames)
            os.kill(child.pid, signal.SIGKILL)
            await until(lambda: told.losses)
            assert told.reasons[0] in ("idle", "lost")

    perform(KIND, scenario)
