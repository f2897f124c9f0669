"""Messages over a stream between real kernels, where packets are lost.

The nodes are those of the runtime: processes that talk over TCP, or over WebRTC, in real time. A
run takes as long as its scenario says, and another with the same seed has the same keys, overlay
and plan, but loses other packets.
"""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial, reduce
from importlib.util import find_spec
from multiprocessing import Pipe
from operator import or_
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from shoal.base.errors import ConfigError
from shoal.base.ids import NodeId
from shoal.base.units import ns_of_ms, ns_of_seconds, seconds
from shoal.kernel.records import RECORD_TYPES
from shoal.protocols.streams.commands import feeds_of
from shoal.sim.delays import DelayModel, table_of
from shoal.sim.simulation import SimulationFailure, stable_random
from shoal.sim.trace import Row, Trace
from shoal_lab.experiments.loss.host import host_key, stream_of
from shoal_lab.experiments.loss.messages import (
    WEBRTC,
    WEBSOCKET,
    Transport,
    UnderlayPlan,
    UnderlayReport,
)
from shoal_lab.experiments.loss.underlay import Answer
from shoal_lab.experiments.streams.figures import (
    StreamFigures,
    StreamResults,
    stream_line,
    stream_rows,
)
from shoal_lab.experiments.streams.tables import Place, StreamRecords, Surroundings
from shoal_lab.scenarios.experiment_kinds import (
    JOINING,
    PUBLISHING,
    Checks,
    ExperimentKind,
    Outcome,
    Rows,
    RunProgress,
    RunRequest,
)
from shoal_lab.scenarios.scenario import Scenario, delay_model
from shoal_lab.testbed.namespaces import NoUnderlay

# What a scenario of this experiment may ask for, and the plan that comes of it.


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


JOIN_S = 1.3
"""Of one node after the other over the AWS table, measured: 1.1 over WebSocket, 1.5 over WebRTC.
One number for both, since what costs most is run first: what is compared is run side by side."""
START_S = 3.0  # processes and namespaces
POLL_S = 0.25
NO_HASH = "none: which packets are lost cannot be repeated"
NOT_ASKED = "not asked for"  # what is lost is what is measured here; nothing is demanded

_ANY_RECORD: Any = reduce(or_, RECORD_TYPES)


class PacketFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the network did with packets."""

    transport: Transport
    """Of the links between nodes."""
    loss_percent: float
    """What links were told to lose."""
    packets: int
    """On all links between hosts and switches; one from host to host counts on both of its."""
    dropped: int
    forwarded: int
    late_us_mean: float
    late_us_p99: float
    late_us_max: float
    host_late_us_mean: float
    """How much later than planned messages were published: hosts that wait for a processor make a
    measurement worthless."""
    host_late_us_p99: float
    overflowed: int
    segments: int
    """That TCP sent, on all hosts. Over WebRTC that is what went to the tracker and from it."""
    retransmitted: int
    timeouts: int
    """Segments that nothing but a timer showed to be lost."""
    datagrams: int
    """That UDP sent, on all hosts: WebRTC. What of it was sent again, SCTP alone knows, and its
    engine does not tell."""


class LossFigures(StreamFigures, frozen=True, kw_only=True):
    """What a run under loss gave."""

    network: PacketFigures


def run_loss(request: RunRequest) -> Outcome:
    """One run; NoUnderlay if the machine forbids what it needs, SimulationFailure if it comes to
    no end."""
    scenario = request.scenario
    plan = make_plan(scenario, request.seed)
    begin_s, cpu_s = time.monotonic(), _cpu_s()
    with _alone():
        report = _run_underlay(plan, request)
    return _outcome(scenario, plan, report, request, time.monotonic() - begin_s, _cpu_s() - cpu_s)


@contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other run over real time is on: it would take processors from this one."""
    with Path(__file__).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run_underlay(plan: UnderlayPlan, request: RunRequest) -> UnderlayReport:
    ours, theirs = Pipe()
    end_s = expected_s(request.scenario)
    begin_s = time.monotonic()
    ends = [str(theirs.fileno()), str(os.getpid())]
    command = [sys.executable, "-m", "shoal_lab.experiments.loss.underlay", *ends]
    with ours, tempfile.TemporaryFile() as complaints:
        # In a session of its own: Ctrl-C is for us, and the network goes when we do.
        process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stderr=complaints, start_new_session=True
        )
        theirs.close()
        try:
            ours.send_bytes(msgspec.msgpack.encode(plan))
            while not ours.poll(POLL_S):
                if request.progress is not None:
                    now_s = time.monotonic() - begin_s
                    part = min(now_s / end_s, 0.99)
                    request.progress(RunProgress(now_s, end_s, 0, part, "s"))
            answer = msgspec.msgpack.decode(ours.recv_bytes(), type=Answer)
        except (EOFError, OSError):
            answer = Answer(problem="the network's process has ended")
        finally:
            process.kill()
            process.wait()
        if answer.report is not None:
            return answer.report
        if answer.forbidden:
            raise NoUnderlay(answer.problem)
        complaints.seek(0)
        said = complaints.read().decode(errors="replace").strip()
        replay = f"\nreplay: {request.replay}" if request.replay else ""
        raise SimulationFailure(
            f"seed {request.seed}, over real kernels: {answer.problem}; its processes said: "
            f"{said or 'nothing'}{replay}"
        )


def _outcome(
    scenario: Scenario,
    plan: UnderlayPlan,
    report: UnderlayReport,
    request: RunRequest,
    took_s: float,
    cpu_s: float,
) -> Outcome:
    ids = [host_key(plan, host).address for host in range(plan.hosts)]
    nodes = ids[:-1]
    delays = delay_model(scenario.network.delays)
    places = [Place(node, delays.region(number)) for number, node in enumerate(nodes)]
    results, trace = StreamResults(nodes), Trace()
    records = StreamRecords(places, results)
    for sink in (results, records):
        trace.to_kinds(sink)
    for row in gather_rows(ids, report):
        trace.add(*row)
    trace.flush()
    world = _surroundings(plan, places, delays, report)
    degrees = {node: len(host.neighbours) for node, host in zip(nodes, report.hosts, strict=False)}
    figures = results.figures(
        world.started_ns, degrees, connected=_is_connected(world, len(nodes)), healed_ns=0
    )
    return Outcome(
        figures=LossFigures(
            **{name: getattr(figures, name) for name in StreamFigures.__struct_fields__},
            network=_packet_figures(plan, report),
        ),
        trace_hash=NO_HASH,
        events=trace.rows,
        records=trace.rows,
        cpu_seconds=cpu_s,
        simulated_seconds=took_s,
        checks=Checks(NOT_ASKED, NOT_ASKED),
        tables=(lambda run: partial(records.tables, run, world)) if request.record else None,
    )


def gather_rows(ids: list[NodeId], report: UnderlayReport) -> list[Row]:
    """The records of all hosts, in the order in which they happened: one machine has one clock."""
    decoder = msgspec.msgpack.Decoder(list[tuple[int, _ANY_RECORD]])
    rows = [
        (time_ns, node, record)
        for node, host in zip(ids, report.hosts, strict=True)
        for time_ns, record in decoder.decode(host.records)
    ]
    return sorted(rows, key=lambda row: row[0])


def _surroundings(
    plan: UnderlayPlan, places: list[Place], delays: DelayModel, report: UnderlayReport
) -> Surroundings:
    number = {place.id: at for at, place in enumerate(places)}
    hosts = list(zip(places, report.hosts, strict=False))
    stream = stream_of(plan)
    return Surroundings(
        started_ns={place.id: host.started_ns for place, host in hosts},
        edges=[
            (stream, a, b, plan.delays_ns[a][b])
            for a, (_, host) in enumerate(hosts)
            for b in [number[NodeId(peer)] for peer in host.neighbours]
        ],
        delays=table_of(delays, range(len(places))),
    )


def _is_connected(world: Surroundings, nodes: int) -> bool:
    ends = np.array([(a, b) for _, a, b, _ in world.edges], np.int64).reshape(-1, 2)
    links = csr_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(nodes, nodes))
    return bool(connected_components(links, connection="strong", return_labels=False) == 1)


def _packet_figures(plan: UnderlayPlan, report: UnderlayReport) -> PacketFigures:
    forwarded = report.forwarded
    kernels = [host.kernel for host in report.hosts]
    late_us = [late for host in report.hosts for late in host.late_us] or [0]
    return PacketFigures(
        transport=plan.transport,
        loss_percent=100 * plan.loss,
        packets=report.links.packets,
        dropped=report.links.dropped,
        forwarded=forwarded.packets,
        late_us_mean=forwarded.late_us[0],
        late_us_p99=forwarded.late_us[1],
        late_us_max=forwarded.late_us[2],
        host_late_us_mean=float(np.mean(late_us)),
        host_late_us_p99=float(np.percentile(late_us, 99)),
        overflowed=report.overflowed,
        segments=sum(kernel.segments for kernel in kernels),
        retransmitted=sum(kernel.retransmitted for kernel in kernels),
        timeouts=sum(kernel.timeouts for kernel in kernels),
        datagrams=sum(kernel.datagrams for kernel in kernels),
    )


def expected_s(scenario: Scenario) -> float:
    """About how long a run takes."""
    plan = make_plan(scenario, scenario.seed)
    joining_s = plan.hosts * (JOIN_S + seconds(plan.join_ns))
    return START_S + joining_s + seconds(plan.settle_ns + plan.end_ns)


def _cpu_s() -> float:
    """Of all processes that we started and that have ended, and their own."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _rows(figures: LossFigures) -> Rows:
    told = figures.network
    lost = 100 * told.dropped / told.packets if told.packets else 0.0
    return [
        *stream_rows(figures),
        (
            "packets",
            f"{told.packets:,} on links, {told.dropped:,} dropped: {lost:.3f} %, asked for "
            f"{told.loss_percent:g} %; {told.overflowed:,} without being asked",
        ),
        (
            "tcp",
            f"{told.segments:,} segments, {told.retransmitted:,} sent again, "
            f"{told.timeouts:,} after a timeout",
        ),
        ("udp", f"{told.datagrams:,} datagrams"),
        (
            "forwarder",
            f"{told.forwarded:,} packets, late by {told.late_us_mean / 1000:.2f} ms, "
            f"p99 {told.late_us_p99 / 1000:.2f}, max {told.late_us_max / 1000:.2f}",
        ),
        (
            "hosts",
            f"published late by {told.host_late_us_mean / 1000:.2f} ms, "
            f"p99 {told.host_late_us_p99 / 1000:.2f}",
        ),
    ]


def _line(figures: LossFigures) -> str:
    told = figures.network
    return (
        f"{stream_line(figures)}, {told.dropped:,} of {told.packets:,} packets lost, "
        f"hosts late by {told.host_late_us_mean / 1000:.1f} ms"
    )


LOSS = ExperimentKind(
    name="streams/loss",
    run=run_loss,
    figures=LossFigures,
    rows=_rows,
    line=_line,
    cost=expected_s,
    reads=JOINING | PUBLISHING | {"degree", "redundant_feeds", "publishers", "publisher_count"},
    options=LossOptions,
    in_real_time=True,
)
