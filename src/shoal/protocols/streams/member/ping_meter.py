"""Round trips to neighbours, measured over the links that carry the data."""

from __future__ import annotations

import math
from random import Random

import msgspec

from shoal.base.ids import NodeId, StreamId
from shoal.base.units import S_NS, US_NS
from shoal.kernel.effects import CancelTimer, CloseLink, Effect, OpenLink, Send, SetTimer
from shoal.kernel.records import Rejected, RttMeasured
from shoal.protocols.streams.config import RTT_US_MAX, NodeConfig
from shoal.protocols.streams.messages import Ping, Probe, Probed, Rtt

ANSWER_NS = 5 * S_NS  # an answer that takes longer is not worth waiting for
GAIN = 8  # as TCP smooths its round trips: one new sample counts an eighth
EAGER = 4  # so many round trips of a new link are measured in quick succession
EAGER_NS = 1 * S_NS  # not at once: while links are made, nodes are busy and look far away


class RunningMean:
    """Mean and spread of a series. The first samples count alike, so that one unlucky round trip
    does not stay for minutes; from the eighth on a new one counts an eighth."""

    __slots__ = ("_square", "_weights", "mean", "samples")

    def __init__(self) -> None:
        self.samples = 0
        self.mean = 0.0
        self._square = 0.0  # weighted mean of squared distances to the mean
        self._weights = 0.0  # sum of the squared weights of all samples

    def add(self, sample: float) -> None:
        """One more."""
        self.samples += 1
        gain = 1 / min(self.samples, GAIN)
        off = sample - self.mean
        self.mean += gain * off
        self._square = (1 - gain) * (self._square + gain * off * off)
        self._weights = (1 - gain) ** 2 * self._weights + gain * gain

    @property
    def deviation(self) -> float:
        """The standard deviation, for a series of any length; 0 of a single sample."""
        return math.sqrt(self._square / (1 - self._weights)) if self.samples > 1 else 0.0


class RttMeter:
    """Pings go out together; the answer to the newest one counts."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._asked: dict[NodeId, tuple[int, int]] = {}  # peer -> (nonce, sent_ns)
        self._measured_us: dict[NodeId, RunningMean] = {}

    def ping(self, peers: tuple[NodeId, ...], now_ns: int) -> list[Effect]:
        """Ask each peer that does not owe us an answer already."""
        recent_ns = now_ns - ANSWER_NS
        peers = tuple([p for p in peers if self._asked.get(p, (0, recent_ns))[1] <= recent_ns])
        if not peers:
            return []
        # Nobody can answer before it was asked, and so look nearer than it is.
        nonce = self._rng.getrandbits(62)
        for peer in peers:
            self._asked[peer] = (nonce, now_ns)
        return [Send(Ping(nonce), peers)]

    def greet(self, peers: tuple[NodeId, ...], now_ns: int) -> list[Effect]:
        """New neighbours: ask at once, and again soon."""
        asked = self.ping(peers, now_ns)
        return [*asked, SetTimer("ping", EAGER_NS)] if asked else asked

    def tick(self, peers: tuple[NodeId, ...], now_ns: int, pause_ns: int) -> list[Effect]:
        """The timer ran out: ask everybody, and come back sooner for whoever is new."""
        self.keep_only(peers)
        new = any(p not in self._measured_us or self._measured_us[p].samples < EAGER for p in peers)
        pause_ns = min(EAGER_NS, pause_ns) if new else pause_ns
        return [*self.ping(peers, now_ns), SetTimer("ping", pause_ns)]

    def answered(self, peer: NodeId, nonce: int, now_ns: int) -> list[Effect]:
        """A Pong came: late ones, and ones that nobody asked for, are ignored."""
        asked = self._asked.get(peer)
        if asked is None or asked[0] != nonce:
            return [Rejected(peer, "unasked-pong")]
        del self._asked[peer]
        sample_us = min((now_ns - asked[1]) // US_NS, RTT_US_MAX)
        measured = self._measured_us.get(peer)
        if measured is None:
            measured = self._measured_us[peer] = RunningMean()
        measured.add(sample_us)
        return [RttMeasured(peer, sample_us)]

    def rtt_us(self, peer: NodeId) -> int | None:
        """The smoothed round trip, if one was measured."""
        measured = self._measured_us.get(peer)
        return None if measured is None else round(measured.mean)

    def deviation_us(self, peer: NodeId) -> int:
        """How much round trips differ from one another; 0 if too few were measured."""
        measured = self._measured_us.get(peer)
        return 0 if measured is None else round(measured.deviation)

    def keep_only(self, peers: tuple[NodeId, ...]) -> None:
        """Forget whoever is no neighbour any more."""
        self._asked = {p: self._asked[p] for p in peers if p in self._asked}
        self._measured_us = {p: self._measured_us[p] for p in peers if p in self._measured_us}


# Measuring round trips to members that are no neighbours, as a tracker asks.
#
# Each is dialled, pinged a few times, and let go; the shortest round trip counts, for links are
# busy while they are made. The tracker gets one answer with all that came within the time.


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
