"""One call: two nodes find a way to each other, and have a data channel at the end of it.

Candidates are told as they are found (trickle ICE, RFC 8838): nobody waits for a STUN server that
does not answer, and a link that began over a TURN server moves to a better way when there is one.
Those that a machine has itself are there within milliseconds, so the description
waits a moment for them; on most networks a call then takes one message each way.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import webrtc

from shoal.base.ids import NodeId
from shoal.transport.endpoint import Outcome
from shoal.transport.session_description import (
    read_candidate,
    read_description,
    write_candidate,
    write_description,
)
from shoal.transport.signalling import (
    CANDIDATES_MAX,
    Answer,
    Candidate,
    Description,
    End,
    More,
    Offer,
    SignalMessage,
)
from shoal.transport.webrtc_carrier import WebRTCCarrier

if TYPE_CHECKING:
    from shoal.transport.webrtc import WebRTCTransport

GATHER_S = 0.02  # for candidates that need no server
SIGNALS_MAX = 64  # that wait to be handled, of one call
CANDIDATES_TAKEN_MAX = 64  # of one call: a peer must not make us knock on every door it names

_CHANNEL = webrtc.RTCDataChannelInit(negotiated=True, id=0)  # ordered and reliable


class Call:
    """One side of a call. The smaller id offers, whoever dialled."""

    def __init__(
        self,
        transport: WebRTCTransport,
        peer: NodeId,
        id: bytes,
        configuration: webrtc.RTCConfiguration,
        *,
        dialled: bool,
        outcome: Outcome,
        deadline_s: float,
    ) -> None:
        """The outcome is for our own dials, of which there may be none."""
        self.peer = peer
        self.id = id
        self.dialled = dialled
        self.outcome = outcome
        self.waiting = 0
        """How many dials of ours wait for the outcome."""
        self.deadline_s = deadline_s
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._connection = webrtc.RTCPeerConnection(configuration)
        channel = self._connection.create_data_channel("shoal", _CHANNEL)
        self.carrier = WebRTCCarrier(transport, self._connection, channel)
        self._fresh: list[Candidate] = []  # not told yet
        self._gathered = asyncio.Event()
        self._described = False
        self._taken = 0
        self._early: list[Candidate] = []  # of the peer, before its description
        self._remote = False
        self._inbox: asyncio.Queue[SignalMessage] = asyncio.Queue(SIGNALS_MAX)
        self._over = False
        channel.on("open", self._on_open)
        self._connection.on("icecandidate", self._on_candidate)
        self._connection.on("connectionstatechange", self._on_state)
        self._connection.on("datachannel", self._on_second_channel)
        self._timer = self._loop.call_at(
            deadline_s, transport.call_failed, self, "timeout", "no connection in time"
        )
        self._task: asyncio.Task[None] | None = None

    def start(self, *, offers: bool) -> None:
        """Begin: with an offer, or by waiting for one."""
        self._task = self._loop.create_task(self._run(offers=offers))

    def tell(self, message: SignalMessage) -> None:
        """The peer says something; too much of it is dropped."""
        with suppress(asyncio.QueueFull):
            self._inbox.put_nowait(message)

    def connected(self) -> None:
        """There is a channel. Signals go on: a way that is found later may be a better one."""
        self._timer.cancel()
        self._timer = self._loop.call_at(self.deadline_s, self._transport.settle, self.carrier)

    def stop(self) -> None:
        """No more signals."""
        self._over = True
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def abort(self) -> None:
        """Let go of the connection, if it does not belong to a link."""
        self.stop()
        if self.carrier.link is None:
            self.carrier.abort("cancelled")

    # Signals

    async def _run(self, *, offers: bool) -> None:
        try:
            if offers:
                await self._connection.set_local_description(await self._connection.create_offer())
                description = await self._description()
                offer = Offer(self.id, not self.dialled, description, self._take_fresh())
                if not self._transport.say(self.peer, offer):
                    self._transport.call_failed(self, "closed", "nobody passes signals on to it")
            while True:
                await self._handle(await self._inbox.get())
        except (webrtc.RTCException, ValueError) as error:
            if not self._over and self.carrier.link is None:
                self._transport.call_failed(self, "malformed", str(error))

    async def _handle(self, message: SignalMessage) -> None:
        match message:
            case Offer(_, _, description, candidates) if not self._remote:
                await self._set_remote(description, "offer")
                answer = await self._connection.create_answer()
                await self._connection.set_local_description(answer)
                await self._add(candidates)
                own = await self._description()
                self._transport.say(self.peer, Answer(self.id, own, self._take_fresh()))
            case Answer(_, description, candidates) if not self._remote:
                await self._set_remote(description, "answer")
                await self._add(candidates)
            case More(_, candidates):
                if self._remote:
                    await self._add(candidates)
                else:
                    self._early.extend(candidates[: CANDIDATES_TAKEN_MAX - len(self._early)])
            case End() if self.carrier.link is None:
                self._transport.call_failed(self, "closed", "the peer does not want to talk")

    async def _set_remote(self, description: Description, kind: str) -> None:
        text = write_description(description, offer=kind == "offer")
        remote = webrtc.RTCSessionDescriptionInit(webrtc.RTCSdpType(kind), text)
        await self._connection.set_remote_description(remote)
        self._remote = True
        early, self._early = self._early, []
        await self._add(early)

    async def _add(self, candidates: Sequence[Candidate]) -> None:
        for candidate in candidates[: CANDIDATES_TAKEN_MAX - self._taken]:
            self._taken += 1
            init = webrtc.RTCIceCandidateInit(write_candidate(candidate), sdp_mid="0")
            await self._connection.add_ice_candidate(init)

    async def _description(self) -> Description:
        """Ours, when the first candidates have had their moment."""
        with suppress(TimeoutError):
            async with asyncio.timeout(GATHER_S):
                await self._gathered.wait()
        local = self._connection.local_description
        if local is None:
            raise ValueError("the engine describes nothing")
        self._described = True
        if self._fresh:
            self._loop.call_later(GATHER_S, self._tell_fresh)  # those beyond the first few
        return read_description(local.sdp)

    def _take_fresh(self) -> tuple[Candidate, ...]:
        taken, self._fresh = self._fresh[:CANDIDATES_MAX], self._fresh[CANDIDATES_MAX:]
        return tuple(taken)

    def _tell_fresh(self) -> None:
        while self._fresh and not self._over:
            self._transport.say(self.peer, More(self.id, self._take_fresh()))

    # What the engine tells

    def _on_candidate(self, event: webrtc.RTCPeerConnectionIceEvent) -> None:
        if event.candidate is None or not event.candidate.candidate:
            self._gathered.set()
            return
        candidate = read_candidate(event.candidate.candidate)
        if candidate is not None:
            if self._described and not self._fresh:
                self._loop.call_later(GATHER_S, self._tell_fresh)
            self._fresh.append(candidate)

    def _on_open(self, _event: webrtc.Event) -> None:
        if not self._over:
            self._transport.call_connected(self)

    def _on_state(self, _event: webrtc.Event) -> None:
        if self._connection.connection_state != webrtc.RTCPeerConnectionState.failed:
            return
        if self.carrier.link is not None:
            self.carrier.connection_failed()
        elif not self._over:
            self._transport.call_failed(self, "closed", "no way was found between the two")

    def _on_second_channel(self, _event: webrtc.RTCDataChannelEvent) -> None:
        """One is enough; whoever opens others wants us to hold what it sends there."""
        if self.carrier.link is not None:
            self.carrier.link.rejected("malformed")
        elif not self._over:
            self._transport.call_failed(self, "malformed", "a channel too many")

    def binding(self) -> bytes | None:
        """What both sides know of this very connection: the certificates that each has shown,
        the offerer's first. Of the peer's it counts what was shown, not what was said. None: it has
        hung up again, before we heard that there is a channel."""
        local, sctp = self._connection.local_description, self._connection.sctp
        assert local is not None  # the channel is open
        assert sctp is not None
        shown = sctp.transport.get_remote_certificates()
        if not shown:
            return None
        digest = hashlib.sha256(shown[0]).digest()
        # Of the engine: a peer that is fast enough is here before we have described ourselves.
        own = read_description(local.sdp).fingerprint
        first = local.type == webrtc.RTCSdpType.offer
        return hashlib.sha256(own + digest if first else digest + own).digest()
