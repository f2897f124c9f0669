"""Somebody who passes signals on with descriptions of its own: ends DTLS on both sides, and tells
each of the two what the other says."""

from __future__ import annotations

import asyncio

import webrtc

from shoal.base.ids import NodeId
from shoal.transport.webrtc_signals import (
    Answer,
    Candidate,
    More,
    Offer,
    SignalMessage,
    encode_signal,
    write_candidate,
    write_description,
)
from tests.transport.exchange import Exchange
from tests.transport.signals import describe


class Half:
    """The connection to one of the two."""

    def __init__(self) -> None:
        self.connection = webrtc.RTCPeerConnection()
        init = webrtc.RTCDataChannelInit(negotiated=True, id=0)
        self.channel = self.connection.create_data_channel("shoal", init)
        self.waiting: list[bytes] = []
        self.channel.on("open", self._opened)

    def send(self, data: bytes) -> None:
        if self.channel.ready_state == "open":
            self.channel.send(data)
        else:
            self.waiting.append(data)

    def _opened(self, _event: webrtc.Event) -> None:
        for data in self.waiting:
            self.channel.send(data)

    async def take(self, message: Offer | Answer) -> None:
        offer = isinstance(message, Offer)
        kind = webrtc.RTCSdpType.offer if offer else webrtc.RTCSdpType.answer
        text = write_description(message.description, offer=offer)
        await self.connection.set_remote_description(webrtc.RTCSessionDescriptionInit(kind, text))
        await self.add(message.candidates)

    async def add(self, candidates: tuple[Candidate, ...]) -> None:
        for candidate in candidates:
            init = webrtc.RTCIceCandidateInit(write_candidate(candidate), sdp_mid="0")
            await self.connection.add_ice_candidate(init)


class Mallory:
    """Sits between two nodes, at the exchange."""

    def __init__(self, exchange: Exchange, smaller: NodeId, larger: NodeId) -> None:
        self.passed_on = 0
        self._exchange = exchange
        self._halves = {smaller: Half(), larger: Half()}
        self._smaller, self._larger = smaller, larger
        self._tasks: set[asyncio.Task[None]] = set()
        for one, other in ((smaller, larger), (larger, smaller)):
            self._halves[one].channel.on("message", self._to(self._halves[other]))

    def alter(
        self, sender: NodeId, receiver: NodeId, message: SignalMessage
    ) -> SignalMessage | None:
        if not isinstance(message, Offer | Answer | More):
            return message
        task = asyncio.get_running_loop().create_task(self._take(sender, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    def close(self) -> None:
        for half in self._halves.values():
            half.connection.close()

    def _to(self, half: Half):  # type: ignore[no-untyped-def]
        def pass_on(event: webrtc.MessageEvent) -> None:
            self.passed_on += 1
            assert isinstance(event.data, bytes)
            half.send(event.data)

        return pass_on

    async def _take(self, sender: NodeId, message: Offer | Answer | More) -> None:
        near = self._halves[sender]
        if isinstance(message, More):
            await near.add(message.candidates)
            return
        await near.take(message)
        if isinstance(message, Offer):
            far = self._halves[self._larger].connection
            own, candidates = await describe(far, await far.create_offer())
            offer = Offer(message.call, message.rung, own, candidates)
            self._exchange.places[self._larger].receive(self._smaller, encode_signal(offer))
        else:
            far = self._halves[self._smaller].connection
            own, candidates = await describe(far, await far.create_answer())
            answer = Answer(message.call, own, candidates)
            self._exchange.places[self._smaller].receive(self._larger, encode_signal(answer))
