"""How many events the simulator handles in a CPU-second.

    .venv/bin/python benchmarks/simulator.py [--json]

One stream over the AWS delay table, signatures verified, every record hashed into the trace, no
checkers. Beside it, in the same process, a bare loop does the least that any event costs in
Python: one tuple through a heap as full as the run's, one message and one record made, one call.
Machines differ, and so does one machine from minute to minute; the ratio of the two does less.
"""

from __future__ import annotations

import argparse
import sys
import time
from heapq import heapify, heappop, heappush
from typing import Any

import msgspec

from shoal.base.ids import MessageId, NodeId, StreamId
from shoal.kernel.records import ReceivedFirst
from shoal.protocols.streams.messages import Flood
from shoal.sim.scheduler import Action
from shoal_lab.runs.runner import run_scenario
from shoal_lab.scenarios.scenario import NetworkSettings, Scenario, WorkloadSettings
from shoal_lab.testbed.process_memory import quiet_collector

SIZES = (64, 256, 1024)
DELIVERIES = 100_000  # per size: about three seconds
BARE_EVENTS = 500_000
HEAP_PER_NODE = 5  # timers and messages that wait at once, as measured with 256 and 1,024 nodes


class Row(msgspec.Struct, frozen=True):
    """One size of the network."""

    nodes: int
    events: int
    events_per_cpu_second: float
    bare_events_per_cpu_second: float
    ratio: float
    """Simulated events per bare event: 1 would be a simulator that costs nothing."""


def simulated(nodes: int, deliveries: int, seed: int) -> tuple[int, float]:
    """Events of one run, and events per CPU-second."""
    scenario = Scenario(
        name="benchmark",
        network=NetworkSettings(nodes=nodes),
        workload=WorkloadSettings(messages=max(1, deliveries // nodes)),
    )
    result = run_scenario(scenario, seed, check=False)
    return result.events, result.events_per_cpu_second


def bare(nodes: int, events: int) -> float:
    """Events per CPU-second of a loop around a heap."""
    node = NodeId(bytes(20))
    message = MessageId(StreamId("0x0/benchmark"), 0, 0, 0, node, "1")
    signed = bytes(400)
    heap: list[tuple[int, int, Action, Any]] = [
        (number, number, _nothing, None) for number in range(HEAP_PER_NODE * nodes)
    ]
    heapify(heap)
    with quiet_collector():
        begin_s = time.process_time()
        for sequence in range(len(heap), len(heap) + events):
            now, _, action, _ = heappop(heap)
            action(ReceivedFirst(message, node, 1, now))
            delay = sequence * 7919 % (2 * len(heap) + 1)
            heappush(heap, (now + delay, sequence, action, Flood(1, now, now, signed)))
        return events / (time.process_time() - begin_s)


def measure(nodes: int, deliveries: int, bare_events: int, seed: int = 1) -> Row:
    """The simulator between two bare loops, so that a slow minute hits both."""
    before = bare(nodes, bare_events)
    events, rate = simulated(nodes, deliveries, seed)
    calibration = (before + bare(nodes, bare_events)) / 2
    return Row(nodes, events, rate, calibration, rate / calibration)


def _nothing(argument: Any) -> None:
    """What happens in the bare loop."""


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description="Simulator events per CPU-second.")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    as_json = parser.parse_args().json
    rows = []
    for nodes in SIZES:
        print(f"{nodes} nodes ...", file=sys.stderr, flush=True)
        rows.append(measure(nodes, DELIVERIES, BARE_EVENTS))
    if as_json:
        print(msgspec.json.encode({"benchmark": "simulator", "rows": rows}).decode())
        return
    print(f"{'nodes':>6}{'events':>10}{'events/CPU-s':>15}{'bare/CPU-s':>13}{'ratio':>8}")
    for row in rows:
        print(
            f"{row.nodes:>6}{row.events:>10,}{row.events_per_cpu_second:>15,.0f}"
            f"{row.bare_events_per_cpu_second:>13,.0f}{row.ratio:>8.3f}"
        )


if __name__ == "__main__":
    main()
