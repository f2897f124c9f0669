"""Plays a scenario over sockets, in real time: the same figures and tables as of a simulation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

import msgspec

from shoal.base.errors import ShoalError
from shoal.base.units import ns_of_seconds
from shoal.lab.collector import quiet_collector
from shoal.lab.experiment import stream_figures, surroundings
from shoal.lab.kinds import OFF, PASSED, Checks, Outcome, RunProgress, RunRequest, Tables
from shoal.lab.liveness import check_deliveries, check_overlay
from shoal.lab.records import Place, StreamRecords
from shoal.lab.results import Held, StreamFigures, StreamResults
from shoal.lab.sockets.clock import LabLoop
from shoal.lab.sockets.network import EPOCH_NS, SocketsNetwork, allow_files, joining_order
from shoal.protocols.streams.estimate import Estimate, estimate_delays, overlay_of
from shoal.sim.randomness import stable_random
from shoal.sim.simulation import SimulationFailure
from shoal.sim.trace import Trace

NO_HASH = "none: a run over sockets cannot be repeated event by event"
NO_SAFETY = "not over sockets"
TELL_S = 0.5
UNIT = "s over sockets"


def run_over_sockets(request: RunRequest) -> Outcome:
    """The `over_sockets` of stream deliveries."""
    allow_files(request.scenario.network)
    order = joining_order(request.scenario, request.seed)
    with asyncio.Runner(loop_factory=LabLoop) as runner, quiet_collector():
        try:
            return runner.run(_Play(request, order).run())
        except ShoalError as error:
            replay = f"\nreplay: {request.replay}" if request.replay else ""
            told = f"seed {request.seed}, over sockets: {type(error).__name__}: {error}{replay}"
            raise SimulationFailure(told) from error


class _Play:
    """One run, from the first tracker to the last message."""

    def __init__(self, request: RunRequest, order: list[int]) -> None:
        self._request = request
        self._scenario = request.scenario
        self._order = order
        self._trace = Trace()
        self._network = SocketsNetwork(request.scenario, request.seed, self._trace)
        self._results = StreamResults(node.id for node in self._network.nodes)
        self._trace.to_kinds(self._results)
        self._records: StreamRecords | None = None
        if request.record:
            places = [Place(node.id, node.region) for node in self._network.nodes]
            self._records = StreamRecords(places, self._results)
            self._trace.to_kinds(self._records)
        self._estimate: Estimate | None = None
        self._begin_s = self._end_s = 0.0

    async def run(self) -> Outcome:
        loop, workload = asyncio.get_running_loop(), self._scenario.workload
        self._begin_s, begin_s, begin_cpu_s = loop.time(), time.monotonic(), time.process_time()
        async with self._network as network:
            joining_s = [self._pace_s(network.join_s(node)) for node in network.nodes]
            first_s, last_s = self._scenario.publishing_s
            quiet_s = workload.settle_s + workload.drain_s
            self._end_s = self._begin_s + sum(joining_s) + quiet_s + last_s - first_s
            for number in self._order:
                due_s = loop.time() + self._pace_s(0.0)
                await network.join(network.nodes[number])
                self._tell()
                await self._wait_until(due_s)
            await self._wait_until(loop.time() + workload.settle_s)
            if self._scenario.prediction:
                self._estimate = estimate_delays(*overlay_of(network.tracked()))
            await self._publish_all()
            await self._wait_until(loop.time() + workload.drain_s)
            cpu_s, real_s = time.process_time() - begin_cpu_s, time.monotonic() - begin_s
            self._trace.flush()
            figures = self._figures()
            check = self._request.check is not False
            if check:
                now_ns = EPOCH_NS + ns_of_seconds(loop.time())
                check_overlay(network, self._results.young_links(now_ns))
                check_deliveries(network, figures)
            return Outcome(
                figures=figures,
                trace_hash=NO_HASH,
                events=network.steps,
                records=self._trace.rows,
                cpu_seconds=cpu_s,
                simulated_seconds=real_s,
                checks=Checks(NO_SAFETY, PASSED if check else OFF),
                tables=self._tables(),
            )

    async def _publish_all(self) -> None:
        scenario, network = self._scenario, self._network
        nodes, rng = network.publishers, stable_random(self._request.seed, "workload")
        begin_s = asyncio.get_running_loop().time()
        for number in range(scenario.messages):
            await self._wait_until(begin_s + number * scenario.workload.interval_ms / 1000)
            in_turn = scenario.workload.publishers == "in-turn"
            node = nodes[number % len(nodes)] if in_turn else rng.choice(nodes)
            network.publish(node, rng.randbytes(scenario.workload.size_bytes))

    def _figures(self) -> StreamFigures:
        # Without faults nothing may be lost, whenever it was published.
        figures = stream_figures(self._network, self._results, self._estimate, healed_ns=0)
        late, loop = self._network.late, asyncio.get_running_loop()
        assert isinstance(loop, LabLoop)
        held = Held(
            count=late.count,
            late_ms_mean=1000 * late.sum_s / max(1, late.count),
            late_ms_max=1000 * late.max_s,
            stood_still_s=loop.stood_still_s(),
        )
        return msgspec.structs.replace(figures, held=held)

    def _tables(self) -> Callable[[str], Tables] | None:
        if self._records is None:
            return None
        # Now, while there is a network to look into.
        records, world = self._records, surroundings(self._network, self._network.delays)
        return lambda run: partial(records.tables, run, world)

    def _pace_s(self, least_s: float) -> float:
        return max(least_s, self._scenario.network.join_interval_ms / 1000)

    async def _wait_until(self, when_s: float) -> None:
        """Let time pass, and say so."""
        loop = asyncio.get_running_loop()
        while (left_s := when_s - loop.time()) > 0:
            self._tell()
            await asyncio.sleep(min(left_s, TELL_S))

    def _tell(self) -> None:
        if self._request.progress is not None:
            done_s = asyncio.get_running_loop().time() - self._begin_s
            all_s = max(self._end_s - self._begin_s, done_s, 1e-9)
            steps, part = self._network.steps, min(done_s / all_s, 0.99)
            self._request.progress(RunProgress(done_s, all_s, steps, part, UNIT))
