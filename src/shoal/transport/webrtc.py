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
from collections.abc import Sequence
from functools import cache

import msgspec
import webrtc

from shoal.base.errors import MalformedMessage, UsageError
from shoal.base.ids import NodeId, short_node_id
from shoal.transport.carrier import Carrier
from shoal.transport.endpoint import Endpoint
from shoal.transport.link import AuthenticatedLink
from shoal.transport.port import Credentials, DialFailed, LinkHandler, TransportLimits
from shoal.transport.signalling import (
    CALL_BYTES,
    End,
    More,
    Offer,
    Ring,
    Signalling,
    SignalMessage,
    decode_signal,
    encode_signal,
)
from shoal.transport.webrtc_call import Call

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
