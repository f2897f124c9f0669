"""What the aware policy costs a tracker, and what it brings.

    .venv/bin/python benchmarks/aware_tracker.py                 2,048 members, a minute or two
    .venv/bin/python benchmarks/aware_tracker.py --members 20000
    .venv/bin/python benchmarks/aware_tracker.py --json

Members join one every 10 ms over the AWS delay table; whatever they are asked to probe, and every
new link, is told as the table has it. Only the policy runs: no nodes, no messages. Then five
minutes pass. CPU is that of all calls of the policy, of rounds of improvement above all, over all
joins.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from random import Random

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from shoal.base.ids import NodeId
from shoal.base.units import S_NS, ns_of_seconds
from shoal.protocols.streams.topology.aware_policy import AwarePolicy
from shoal.sim.delays import load_table

JOIN_S = 0.01
HOP_MS = 0.1
SOURCES = 64  # members whose delays to all are looked at


class Cost(msgspec.Struct, frozen=True):
    """One line of the result."""

    members: int
    after_s: float
    """Since the last join."""
    rdp: float
    cpu_ms_per_join: float
    round_ms_max: float
    links_made_per_member: float
    memory_mib: int


class Drive:
    """Plays the members of one policy."""

    def __init__(self, members: int, seed: int) -> None:
        table = np.array(load_table("aws").delays_ns) / 1e6
        self.delays_ms: NDArray[np.float64] = (table + table.T) / 2
        self.ids = [NodeId(number.to_bytes(20, "big")) for number in range(members)]
        self.number = {node: number for number, node in enumerate(self.ids)}
        self.policy = AwarePolicy(4, Random(seed))
        self.joined = 0
        self.cpu_s = self.round_s_max = 0.0
        self.links_made = 0
        self._words: list[tuple[NodeId, NodeId]] = []
        self._round_due_s = 0.0

    def until(self, end_s: float) -> None:
        """Let time pass, from one round to the next."""
        while self._round_due_s <= end_s:
            begin_s = time.process_time()
            while self.joined < len(self.ids) and self.joined * JOIN_S <= self._round_due_s:
                self.policy.join(self.ids[self.joined])
                self.joined += 1
            for a, b in self._words:
                self.policy.delay_learned(a, b, round(2e6 * self._one_way_ms(a, b)))
            round_begin_s = time.process_time()
            now_ns = ns_of_seconds(1 + self._round_due_s)
            improved = self.policy.improve(lambda _: True, now_ns)
            ended_s = time.process_time()
            self.cpu_s += ended_s - begin_s
            self.round_s_max = max(self.round_s_max, ended_s - round_begin_s)
            added = improved.changes.added
            self.links_made += len(added)
            self._words = [(node, other) for node, others in improved.probes for other in others]
            self._words += [(p.a, p.b) for p in added] + [(p.b, p.a) for p in added]
            self._round_due_s += (self.policy.pause_ns or S_NS) / S_NS

    def cost(self, after_s: float) -> Cost:
        """As it stands."""
        return Cost(
            self.joined,
            after_s,
            round(self._rdp(), 3),
            round(1000 * self.cpu_s / self.joined, 2),
            round(1000 * self.round_s_max),
            round(self.links_made / self.joined, 1),
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        )

    def _one_way_ms(self, a: NodeId, b: NodeId) -> float:
        regions = len(self.delays_ms)
        return float(self.delays_ms[self.number[a] % regions, self.number[b] % regions])

    def _rdp(self) -> float:
        size, regions = self.joined, len(self.delays_ms)
        pairs = [(self.number[a], self.number[b]) for a in self.ids for b in self._neighbours(a)]
        one, other = np.array(pairs).T
        weights = self.delays_ms[one % regions, other % regions] + HOP_MS
        sources = np.random.default_rng(0).choice(size, min(SOURCES, size), replace=False)
        graph = csr_array((weights, (one, other)), shape=(size, size))
        over_ms = dijkstra(graph, indices=sources)
        direct_ms = self.delays_ms[np.ix_(sources % regions, np.arange(size) % regions)]
        return float(over_ms.sum() / direct_ms.sum())

    def _neighbours(self, node: NodeId) -> tuple[NodeId, ...]:
        return self.policy.neighbours(node) if node in self.policy.nodes else ()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, default=2048)
    parser.add_argument("--minutes", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one object a line")
    options = parser.parse_args()
    drive = Drive(options.members, options.seed)
    joined_s = options.members * JOIN_S
    for minute in range(options.minutes + 1):
        drive.until(joined_s + 60 * minute)
        cost = drive.cost(60.0 * minute)
        if options.json:
            print(msgspec.json.encode(cost).decode(), flush=True)
        else:
            print(
                f"{cost.members} members, {minute} min: RDP {cost.rdp:.3f}, "
                f"{cost.cpu_ms_per_join:.2f} ms of CPU per join, rounds up to "
                f"{cost.round_ms_max:.0f} ms, {cost.links_made_per_member} links made per member, "
                f"{cost.memory_mib} MiB",
                flush=True,
            )
    sys.exit(0)


if __name__ == "__main__":
    main()
