"""Transports that call each other, and strangers that call: bare channels below the link."""

from __future__ import annotations

import asyncio
import hashlib

import webrtc

from shoal.base.ids import NodeId
from shoal.transport.port import Credentials, LinkHandler, TransportLimits
from shoal.transport.webrtc import WebRTCTransport
from shoal.transport.webrtc_channel import GOODBYE, LAST, PART, PIECE_BYTES
from shoal.transport.webrtc_signals import (
    Answer,
    Candidate,
    Description,
    End,
    More,
    Offer,
    Ring,
    decode_signal,
    encode_signal,
    read_candidate,
    read_description,
    write_candidate,
    write_description,
)
from tests.transport.exchange import Exchange, Place
from tests.transport.recorder import PATIENCE_S
from tests.transport.wires import Inbox

CALL = b"stranger"


class LocalTransport(WebRTCTransport):
    """Cannot be signalled to after its end."""

    exchange: Exchange

    async def close(self) -> None:
        await super().close()
        self.exchange.places.pop(self.credentials.key.address, None)


def webrtc_transport(
    identity: Credentials, told: LinkHandler, limits: TransportLimits | None, exchange: Exchange
) -> WebRTCTransport:
    place = Place(exchange, identity.key.address)
    transport = LocalTransport(identity, told, limits, signalling=place, loopback=True)
    transport.exchange = exchange
    return transport


class WebRTCWire(Inbox):
    """A bare caller, which has no key."""

    def __init__(self) -> None:
        super().__init__()
        self.binding = b""
        self.connection = webrtc.RTCPeerConnection()
        init = webrtc.RTCDataChannelInit(negotiated=True, id=0)
        self.channel = self.connection.create_data_channel("shoal", init)
        self._open = asyncio.Event()
        self._answer: asyncio.Future[Offer | Answer | End] = (
            asyncio.get_running_loop().create_future()
        )
        self._pieces = b""
        self.channel.on("open", lambda _: self._open.set())
        self.channel.on("message", self._on_message)
        self.channel.on("close", lambda _: self.put(None))

    @classmethod
    async def open(cls, exchange: Exchange, target: NodeId, caller: NodeId) -> WebRTCWire:
        async with asyncio.timeout(PATIENCE_S):
            wire = cls()
            place = Place(exchange, caller)
            place.receive = wire._signalled
            await wire._call(place, target, offers=caller < target)
            return wire

    async def _call(self, place: Place, target: NodeId, *, offers: bool) -> None:
        if offers:
            offer = await self.connection.create_offer()
            own, candidates = await describe(self.connection, offer)
            place.send(target, encode_signal(Offer(CALL, False, own, candidates)))
            theirs = await self._answer
        else:
            place.send(target, encode_signal(Ring(CALL)))
            theirs = await self._answer
        if isinstance(theirs, End):
            self.put(None)
            return
        kind = webrtc.RTCSdpType.answer if offers else webrtc.RTCSdpType.offer
        text = write_description(theirs.description, offer=not offers)
        await self.connection.set_remote_description(webrtc.RTCSessionDescriptionInit(kind, text))
        if not offers:
            answer = await self.connection.create_answer()
            own, candidates = await describe(self.connection, answer)
            place.send(target, encode_signal(Answer(CALL, own, candidates)))
        for candidate in theirs.candidates:
            init = webrtc.RTCIceCandidateInit(write_candidate(candidate), sdp_mid="0")
            await self.connection.add_ice_candidate(init)
        await self._open.wait()
        assert self.connection.sctp is not None
        shown = self.connection.sctp.transport.get_remote_certificates()[0]
        digests = [own.fingerprint, hashlib.sha256(shown).digest()]
        self.binding = hashlib.sha256(b"".join(digests if offers else digests[::-1])).digest()

    def send(self, message: bytes) -> None:
        for start in range(0, max(1, len(message)), PIECE_BYTES):
            stop = start + PIECE_BYTES
            kind = LAST if stop >= len(message) else PART
            self.channel.send(bytes((kind,)) + message[start:stop])

    def hang_up(self) -> None:
        self.connection.close()

    def _signalled(self, peer: NodeId, signal: bytes) -> None:
        message = decode_signal(signal)
        if isinstance(message, Offer | Answer | End) and not self._answer.done():
            self._answer.set_result(message)
        else:
            assert isinstance(message, More | End)

    def _on_message(self, event: webrtc.MessageEvent) -> None:
        assert isinstance(event.data, bytes)
        kind, data = event.data[0], event.data[1:]
        if kind in (PART, LAST):
            self._pieces += data
            if kind == LAST:
                self.put(self._pieces)
                self._pieces = b""
        elif kind == GOODBYE:
            self.put(None)


async def describe(
    connection: webrtc.RTCPeerConnection, local: webrtc.RTCSessionDescriptionInit
) -> tuple[Description, tuple[Candidate, ...]]:
    """How a connection is reached, when it has found all of it."""
    gathered = asyncio.Event()
    candidates: list[Candidate] = []

    def found(event: webrtc.RTCPeerConnectionIceEvent) -> None:
        if event.candidate is None:
            gathered.set()
        elif (candidate := read_candidate(event.candidate.candidate)) is not None:
            candidates.append(candidate)

    connection.on("icecandidate", found)
    await connection.set_local_description(local)
    await gathered.wait()
    described = connection.local_description
    assert described is not None
    return read_description(described.sdp), tuple(candidates)
