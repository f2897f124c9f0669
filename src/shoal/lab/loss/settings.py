"""What a scenario of this experiment may ask for, and the plan that comes of it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.base.errors import ConfigError
from shoal.base.units import ns_of_ms, ns_of_seconds
from shoal.lab.loss.plan import WEBRTC, WEBSOCKET, Transport, UnderlayPlan
from shoal.lab.scenario import Scenario, delay_model
from shoal.protocols.streams.commands import feeds_of
from shoal.sim.randomness import stable_random

HOSTS_MAX = 200  # a namespace and a process each, and an address with its number in one byte
LOSS_PERCENT_MAX = 50.0  # above it not even the first handshake gets through in reasonable time


class LossOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[options] of this experiment."""

    loss_percent: Annotated[float, Meta(ge=0, le=LOSS_PERCENT_MAX)] = 0.0
    """Of the packets on the link between a host and its switch, each way. A packet from host to
    host takes two such links."""

    transport: Transport = WEBSOCKET
    """Of the links between nodes; the tracker is always dialled over WebSocket."""


def make_plan(scenario: Scenario, seed: int) -> UnderlayPlan:
    """The plan of one run; ConfigError if the scenario asks for what this machine cannot do."""
    network, workload = scenario.network, scenario.workload
    if network.nodes > HOSTS_MAX:
        raise ConfigError(
            f"network.nodes = {network.nodes}: each is a process and a namespace here: "
            f"at most {HOSTS_MAX}"
        )
    options = options_of(scenario)
    if options.transport == WEBRTC and find_spec("webrtc") is None:
        raise ConfigError(
            f"options.transport = {WEBRTC!r}: there is no module webrtc: "
            "pip install 'shoal[webrtc]'"
        )
    delays = delay_model(network.delays)
    hosts = range(network.nodes + 1)
    offsets: list[list[int]] = [[] for _ in range(network.nodes)]
    rng = stable_random(seed, "workload")
    count = min(workload.publisher_count or network.nodes, network.nodes)
    publishers = sorted(rng.sample(range(network.nodes), count))
    for number in range(scenario.messages):
        in_turn = workload.publishers == "in-turn"
        node = publishers[number % count] if in_turn else rng.choice(publishers)
        offsets[node].append(ns_of_ms(number * workload.interval_ms))
    last_ns = max((times[-1] for times in offsets if times), default=0)
    return UnderlayPlan(
        seed=seed,
        transport=options.transport,
        loss=options.loss_percent / 100,
        degree=network.degree,
        redundant_feeds=feeds_of(network.redundant_feeds),
        delays_ns=tuple(tuple(delays.one_way_ns(a, b) for b in hosts) for a in hosts),
        offsets_ns=tuple(map(tuple, offsets)),
        size_bytes=workload.size_bytes,
        join_ns=ns_of_ms(network.join_interval_ms),
        settle_ns=ns_of_seconds(workload.settle_s),
        end_ns=last_ns + ns_of_seconds(workload.drain_s),
    )


def options_of(scenario: Scenario) -> LossOptions:
    """The options of a scenario, also of one that was not read from a file."""
    return scenario.options or LossOptions()
