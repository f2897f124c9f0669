"""Links over WebRTC data channels: for nodes that nobody can dial, through NATs, with libwebrtc.

There are no addresses to dial: "webrtc:" says that a node is reached by signals, through whoever
passes them on (signalling.py). One call per pair at a time: a dial to a peer that calls us, or that
we call already, waits for that call. The smaller id offers, so that of two who dial at once one
rings in vain, and finds its link in the other's call.

Trust. Whoever passes signals on could put its own fingerprints in, and sit in between. So the
handshake of the link is bound to both certificates as each side saw them in DTLS: what the two
signed then differs, and they refuse each other. Frames carry no MAC: DTLS authenticates them.

No server is asked for anything unless it is configured: without STUN and TURN servers, the
candidates are the addresses of this machine.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

import msgspec
import webrtc

from shoal.base.errors import MalformedMessage, UsageError
from shoal.base.ids import NodeId, short_node_id
from shoal.transport.endpoint import Endpoint, Outcome
from shoal.transport.link import AuthenticatedLink, Carrier
from shoal.transport.port import Credentials, DialFailed, LinkHandler, TransportLimits
from shoal.transport.webrtc_channel import WebRTCCarrier
from shoal.transport.webrtc_signals import (
    CALL_BYTES,
    CANDIDATES_MAX,
    Answer,
    Candidate,
    Description,
    End,
    More,
    Offer,
    Ring,
    Signalling,
    SignalMessage,
    decode_signal,
    encode_signal,
    read_candidate,
    read_description,
    write_candidate,
    write_description,
)

SCHEME = "webrtc"


class IceServer(msgspec.Struct, frozen=True):
    """A STUN or TURN server."""

    url: str
    user: str | None = None
    password: str | None = None


class WebRTCTransport(Endpoint):
    """Makes links to peers at "webrtc:"."""

    schemes = (SCHEME,)

    def __init__(
        self,
        credentials: Credentials,
        handler: LinkHandler,
        limits: TransportLimits | None = None,
        *,
        signalling: Signalling,
        servers: Sequence[IceServer] = (),
        loopback: bool = False,
    ) -> None:
        """With loopback, peers on the same machine are found though it has no network; it holds
        for the whole process, and must be said before its first call."""
        super().__init__(credentials, handler, limits)
        self._me = credentials.key.address
        self._signalling = signalling
        self._configuration = _configuration(servers)
        self._calls: dict[NodeId, Call] = {}
        self._settling: dict[Carrier, Call] = {}
        """Calls that have their link, and may find a better way for it."""
        self._listening = False
        signalling.receive = self._signalled
        if loopback:
            _allow_loopback()

    async def close(self) -> None:
        """Close every call and link, flushed."""
        self._closed = True
        for call in list(self._calls.values()):
            if call.carrier.link is None:
                self.call_failed(call, "closed", "this transport was closed")
        await super().close()

    # Listening

    async def _listen(self, address: str) -> WebRTCListener:
        _check_address(address)
        if self._listening:
            raise UsageError(f"{address}: this transport listens already: name it once")
        self._listening = True
        return WebRTCListener(self, address)

    def stop_listening(self) -> None:
        """Take no more calls."""
        self._listening = False

    # Dialling

    async def _connect(self, address: str, peer: NodeId) -> AuthenticatedLink:
        _check_address(address)
        if peer == self._me:
            raise DialFailed("self: a node cannot call itself")
        call = self._calls.get(peer)
        if call is None:
            call = self._begin(peer, self.credentials.entropy.token(CALL_BYTES), dialled=True)
            ringing = self._me > peer
            if ringing and not self.say(peer, Ring(call.id)):
                self._forget(call)
                raise DialFailed(f"nobody passes signals on to {short_node_id(peer)}")
            call.start(offers=not ringing)
        elif call.outcome.done():  # an earlier dial has lost its patience
            call.outcome = asyncio.get_running_loop().create_future()
        call.waiting += 1
        try:
            return await asyncio.shield(call.outcome)
        finally:
            call.waiting -= 1
            if not call.waiting and not call.outcome.done():
                self._given_up(peer, call)

    def _given_up(self, peer: NodeId, call: Call) -> None:
        """No dial of ours waits any more. A call of the peer's goes on: it has not given up."""
        call.outcome.cancel()
        if self._calls.get(peer) is not call or not call.dialled:
            return
        self._forget(call)
        self.say(peer, End(call.id))
        if call.carrier.link is not None:
            call.carrier.link.close("cancelled")

    # Signals

    def say(self, peer: NodeId, message: SignalMessage) -> bool:
        """Send a signal; False if there is no way to this peer."""
        return self._signalling.send(peer, encode_signal(message))

    def _signalled(self, peer: NodeId, signal: bytes) -> None:
        """A peer has something to say, or somebody in its name."""
        if self._closed:
            return
        try:
            message = decode_signal(signal)
        except MalformedMessage:
            self.tell_failure(_show(peer), "malformed")
            return
        call = self._calls.get(peer)
        if isinstance(message, Ring):
            self._rung(peer, message, call)
        elif isinstance(message, Offer) and not message.rung:
            self._offered(peer, message, call)
        elif call is not None and call.id == message.call:
            call.tell(message)
        elif isinstance(message, More):
            for settling in self._settling.values():
                if settling.peer == peer and settling.id == message.call:
                    settling.tell(message)

    def _rung(self, peer: NodeId, ring: Ring, call: Call | None) -> None:
        if not self._me < peer:
            self.tell_failure(_show(peer), "malformed")
            return
        if call is not None and (call.dialled or call.id == ring.call):
            return  # ours is on its way, and the peer will take it
        self._answer(peer, ring.call, call, offers=True)

    def _offered(self, peer: NodeId, offer: Offer, call: Call | None) -> None:
        if not peer < self._me:
            self.tell_failure(_show(peer), "malformed")
            return
        if call is not None and call.id == offer.call:
            return
        answered = self._answer(peer, offer.call, call, offers=False)
        if answered is not None:
            answered.tell(offer)

    def _answer(self, peer: NodeId, id: bytes, before: Call | None, *, offers: bool) -> Call | None:
        """A peer calls. What we had with it before is given up, and who waits for that, waits for
        this one."""
        strangers = [c for c in self._calls.values() if not c.dialled and c.carrier.link is None]
        if not self._listening:
            self.say(peer, End(id))
            return None
        if not self.may_enter(len(strangers)):
            self.say(peer, End(id))
            self.tell_failure(_show(peer), "busy")
            return None
        if before is not None:
            self._forget(before)
            if before.carrier.link is not None:
                before.carrier.link.close("replaced")
        call = self._begin(peer, id, dialled=False)
        if before is not None and not before.outcome.done():
            call.outcome, call.waiting = before.outcome, before.waiting
        call.start(offers=offers)
        return call

    # Calls

    def _begin(self, peer: NodeId, id: bytes, *, dialled: bool) -> Call:
        loop = asyncio.get_running_loop()
        call = self._calls[peer] = Call(
            self,
            peer,
            id,
            self._configuration,
            dialled=dialled,
            outcome=loop.create_future(),
            deadline_s=loop.time() + self._handshake_timeout_s,
        )
        return call

    def call_connected(self, call: Call) -> None:
        """The channel is open: shake hands."""
        binding = call.binding()
        if binding is None:
            self.call_failed(call, "closed", "it hung up at once")
            return
        remaining_s = max(0.0, call.deadline_s - asyncio.get_running_loop().time())
        call.connected()
        self.shake_hands(
            call.carrier,
            _show(call.peer),
            expects=call.peer,
            outcome=call.outcome if call.dialled else None,
            binding=binding,
            timeout_s=remaining_s,
            accepts=not call.dialled,
        )

    def call_failed(self, call: Call, reason: str, detail: str) -> None:
        """There will be no channel."""
        self._forget(call)
        self.say(call.peer, End(call.id))
        _fail(call, f"{reason}: {detail}")
        if not call.dialled:
            self.tell_failure(_show(call.peer), reason)

    def _forget(self, call: Call) -> None:
        if self._calls.get(call.peer) is call:
            del self._calls[call.peer]
        call.abort()

    # What links tell

    def link_established(self, link: AuthenticatedLink) -> None:
        """A peer has proven who it is. A dial of ours that waits for its call has its link."""
        call = self._take(link)
        if call is not None:
            self._settling[call.carrier] = call
        if link.dialled or call is None or not call.waiting or call.outcome.done():
            super().link_established(link)
            return
        self._strangers.discard(link)
        link.hold()
        call.outcome.set_result(link)

    def link_refused(self, link: AuthenticatedLink, reason: str, detail: str) -> None:
        """A peer has not."""
        call = self._take(link)
        super().link_refused(link, reason, detail)
        if call is not None:
            call.stop()
            _fail(call, detail)

    def carrier_closed(self, carrier: Carrier) -> None:
        """Its resources are free; so is its call, if that had not come to an end."""
        call = None if carrier.link is None else self._take(carrier.link)
        if call is not None:
            call.stop()
        self.settle(carrier)
        super().carrier_closed(carrier)

    def settle(self, carrier: Carrier) -> None:
        """The time for a better way is over."""
        call = self._settling.pop(carrier, None)
        if call is not None:
            call.stop()

    def _take(self, link: AuthenticatedLink) -> Call | None:
        for call in self._calls.values():
            if call.carrier.link is link:
                del self._calls[call.peer]
                return call
        return None


class WebRTCListener:
    """That a node takes calls."""

    def __init__(self, transport: WebRTCTransport, address: str) -> None:
        self._transport = transport
        self._address = address

    @property
    def address(self) -> str:
        """By signals."""
        return self._address

    async def close(self) -> None:
        """Take no more calls."""
        self._transport.stop_listening()


def _configuration(servers: Sequence[IceServer]) -> webrtc.RTCConfiguration:
    # Nothing is left to defaults: other engines ask a public server unless told not to.
    return webrtc.RTCConfiguration(
        ice_servers=[webrtc.RTCIceServer([s.url], s.user, s.password) for s in servers]
    )


def _fail(call: Call, detail: str) -> None:
    """Tell our dials that wait for a call, if there are any."""
    if call.waiting and not call.outcome.done():
        call.outcome.set_exception(DialFailed(detail))
        call.outcome.exception()  # seen: they may have been cancelled in this very turn


@cache
def _allow_loopback() -> None:
    """Once a process: the engine takes it before its first call only."""
    try:
        webrtc.allow_loopback()
    except webrtc.InvalidStateError as error:
        raise UsageError(
            "this process has made WebRTC calls without loopback: say it for the first transport"
        ) from error


def _check_address(address: str) -> None:
    if address.partition(":")[:2] != (SCHEME, ":"):
        raise UsageError(f"{address!r} is no address of this transport: write {SCHEME}:")


def _show(peer: NodeId) -> str:
    return f"{SCHEME}:{short_node_id(peer)}"


# One call: two nodes find a way to each other, and have a data channel at the end of it.
#
# Candidates are told as they are found (trickle ICE, RFC 8838): nobody waits for a STUN server that
# does not answer, and a link that began over a TURN server moves to a better way when there is one.
# Those that a machine has itself are there within milliseconds, so the description
# waits a moment for them; on most networks a call then takes one message each way.


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
