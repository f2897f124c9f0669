"""Measuring round trips to members that are no neighbours, as a tracker asks.

Each is dialled, pinged a few times, and let go; the shortest round trip counts, for links are busy
while they are made. The tracker gets one answer with all that came within the time.
"""

from __future__ import annotations

from random import Random

import msgspec

from shoal.base.ids import NodeId, StreamId
from shoal.base.units import US_NS
from shoal.kernel.effects import CancelTimer, CloseLink, Effect, OpenLink, Send, SetTimer
from shoal.kernel.records import RttMeasured
from shoal.protocols.streams.config import RTT_US_MAX, NodeConfig
from shoal.protocols.streams.messages import Ping, Probe, Probed, Rtt

PROBE = "probe"  # the purpose of these links, and of the timer
PINGS = 3


class _Target(msgspec.Struct):
    """Somebody to be measured."""

    streams: dict[StreamId, None]
    nonce: int = 0
    sent_ns: int = 0
    samples_us: list[int] = []


class _Request(msgspec.Struct):
    """What a tracker wants to know."""

    tracker: NodeId
    missing: dict[NodeId, None]
    found: list[Rtt] = []


class Prober:
    """All probes of a node."""

    __slots__ = ("_config", "_requests", "_rng", "_targets")

    def __init__(self, rng: Random, config: NodeConfig) -> None:
        self._rng = rng
        self._config = config
        self._targets: dict[NodeId, _Target] = {}
        self._requests: dict[StreamId, _Request] = {}

    def asked(self, node: NodeId, tracker: NodeId, probe: Probe) -> list[Effect]:
        """A tracker wants round trips; what it asked before for the stream is dropped."""
        stream = probe.stream
        effects = self.forget(stream)
        contacts = [contact for contact in probe.contacts if contact.node != node]
        missing = dict.fromkeys(contact.node for contact in contacts)
        self._requests[stream] = _Request(tracker, missing)
        for contact in contacts:
            target = self._targets.get(contact.node)
            if target is None:
                self._targets[contact.node] = _Target({stream: None})
                effects.append(OpenLink(contact, PROBE))
            else:
                target.streams[stream] = None
        return [*effects, SetTimer((PROBE, stream), self._config.probe_ns)]

    def streams_of(self, peer: NodeId) -> tuple[StreamId, ...]:
        """In which streams somebody is being measured."""
        target = self._targets.get(peer)
        return () if target is None else tuple(target.streams)

    def opened(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """The link to somebody is up."""
        target = self._targets.get(peer)
        return [CloseLink(peer, PROBE)] if target is None else self._ping(peer, target, now_ns)

    def answered(self, peer: NodeId, nonce: int, now_ns: int) -> list[Effect] | None:
        """A Pong came; None if it answers no ping of ours."""
        target = self._targets.get(peer)
        if target is None or not target.nonce or target.nonce != nonce:
            return None
        sample_us = min((now_ns - target.sent_ns) // US_NS, RTT_US_MAX)
        target.samples_us.append(sample_us)
        measured = RttMeasured(peer, sample_us)
        if len(target.samples_us) < PINGS:
            return [measured, *self._ping(peer, target, now_ns)]
        return [measured, *self._done(peer), CloseLink(peer, PROBE)]

    def lost(self, peer: NodeId) -> list[Effect]:
        """A link did not come up, or broke: what was measured until then is told."""
        return self._done(peer) if peer in self._targets else []

    def timed_out(self, stream: StreamId) -> list[Effect]:
        """Tell the tracker what there is."""
        request = self._requests.get(stream)
        if request is None:
            return []
        found, tracker = tuple(request.found), request.tracker
        return [*self.forget(stream), Send(Probed(stream, found), (tracker,))]

    def forget(self, stream: StreamId) -> list[Effect]:
        """Nobody wants to know any more."""
        request = self._requests.pop(stream, None)
        if request is None:
            return []
        effects: list[Effect] = [CancelTimer((PROBE, stream))]
        for peer in request.missing:
            target = self._targets[peer]
            del target.streams[stream]
            if not target.streams:
                del self._targets[peer]
                effects.append(CloseLink(peer, PROBE))
        return effects

    def _ping(self, peer: NodeId, target: _Target, now_ns: int) -> list[Effect]:
        target.nonce = 1 + self._rng.getrandbits(62)  # nobody can answer before it was asked
        target.sent_ns = now_ns
        return [Send(Ping(target.nonce), (peer,))]

    def _done(self, peer: NodeId) -> list[Effect]:
        target = self._targets.pop(peer)
        effects: list[Effect] = []
        for stream in target.streams:
            request = self._requests[stream]
            del request.missing[peer]
            if target.samples_us:
                request.found.append(Rtt(peer, min(target.samples_us)))
            if not request.missing:
                effects.extend(self.timed_out(stream))
        return effects
