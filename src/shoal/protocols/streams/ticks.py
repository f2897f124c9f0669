"""What a node does for one stream now and then: repair gaps, tell of quiet chains, report."""

from __future__ import annotations

from functools import partial

from shoal.kernel.effects import Effect, SetTimer
from shoal.protocols.streams.flooding import Flooding
from shoal.protocols.streams.rtt import RttMeter
from shoal.protocols.streams.stream_state import StreamState

TICKS = ("repair", "heads", "report")  # the first fields of their timer keys


def tick(
    name: str, state: StreamState, flooding: Flooding, rtts: RttMeter, now_ns: int
) -> list[Effect]:
    """One of TICKS ran out."""
    channel, overlay = state.channel, state.overlay
    if name == "repair":
        under_way = partial(flooding.under_way, overlay.stream)
        effects, ready = channel.repair.tick(channel.active, now_ns, under_way)
        if channel.subscribed:
            effects.extend(flooding.deliver(ready, now_ns))
        return effects
    if name == "heads":
        told = channel.repair.tell_quiet(channel.active, now_ns)
        return [*told, SetTimer((name, overlay.stream), flooding.config.heads_ns)]
    handling_ns = flooding.handling.typical_ns(now_ns)
    return state.reporter.report(overlay.tracker, channel.active, rtts, now_ns, handling_ns)
