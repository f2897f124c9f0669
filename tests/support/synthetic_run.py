"""A run of the lab as it would be on disk, made in a moment: the same for the same seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from shoal.kernel.records import RUN_FILE, RUN_FORMAT
from shoal_lab.runs.run_tables import run_table_schema

REGIONS = ("eu-north-1", "us-east-1", "us-west-2", "ap-northeast-1", "sa-east-1", "eu-west-1")
STREAM = "0x000070379193e54cc02ded2f1465f53c0e887c8c/lab"
MESSAGES = 3


class SyntheticRun:
    """Nodes on two random rings: four neighbours each. Messages take the fastest way."""

    def __init__(self, nodes: int = 2048, seed: int = 1) -> None:
        self.nodes = nodes
        self.run = f"synthetic-{seed}-{nodes}"
        self._rng = np.random.default_rng(seed)
        places = np.arange(nodes) % len(REGIONS)
        far_us = self._rng.integers(10_000, 90_000, (len(REGIONS), len(REGIONS)))
        far_us = (far_us + far_us.T) // 200 * 100  # tenths of a millisecond, the same both ways
        pairs = self._pairs()
        self.links = np.concatenate([pairs, pairs[:, ::-1]])
        self.delays_us = far_us[places[self.links[:, 0]], places[self.links[:, 1]]]
        self.regions = [REGIONS[place] for place in places]
        self.publishers = [7 % nodes, nodes // 2, nodes - 1]
        ways = csr_array((self.delays_us, self.links.T), shape=(nodes, nodes))
        self.arrived_us, self.senders = dijkstra(
            ways, indices=self.publishers, return_predecessors=True
        )

    def _pairs(self) -> Any:
        pairs = set()
        for _ in range(2):
            ring = self._rng.permutation(self.nodes)
            for a, b in zip(ring, np.roll(ring, -1), strict=True):
                pairs.add((min(int(a), int(b)), max(int(a), int(b))))
        return np.array(sorted(pairs))

    def hops(self, message: int) -> list[int]:
        """How many links each node is away, along the fastest way."""
        publisher, senders = self.publishers[message], self.senders[message]
        hops = {publisher: 0}
        for node in np.argsort(self.arrived_us[message], kind="stable").tolist():
            if node != publisher:
                hops[node] = hops[int(senders[node])] + 1
        return [hops[node] for node in range(self.nodes)]

    def write(self, folder: Path) -> str:
        """Into a folder of runs; the run's name."""
        path = folder / self.run
        path.mkdir(parents=True)
        tables = {
            "nodes": [
                {"node": n, "id": _id(n), "region": region, "ready_ns": 0}
                for n, region in enumerate(self.regions)
            ],
            "topologies": [
                {"stream": STREAM, "a": int(a), "b": int(b), "delay_us": int(delay)}
                for (a, b), delay in zip(self.links, self.delays_us, strict=True)
            ],
            "deliveries": [row for m in range(MESSAGES) for row in self._deliveries(m)],
        }
        for name, rows in tables.items():
            schema = run_table_schema(name)
            table = pa.Table.from_pylist([{"run": self.run, **row} for row in rows], schema)
            pq.write_table(table, path / f"{name}.parquet")
        said = self._said({name: len(rows) for name, rows in tables.items()})
        (path / RUN_FILE).write_bytes(msgspec.json.encode(said))
        return self.run

    def _deliveries(self, message: int) -> list[dict[str, Any]]:
        publisher, hops = self.publishers[message], self.hops(message)
        return [
            {
                "stream": STREAM,
                "message": message,
                "publisher": publisher,
                "node": node,
                "region": self.regions[node],
                "delay_tenths_ms": int(self.arrived_us[message][node]) // 100,
                "hops": hops[node],
                "duplicates": 2,
                "due": True,
            }
            for node in range(self.nodes)
            if node != publisher
        ]

    def _said(self, tables: dict[str, int]) -> dict[str, Any]:
        network = {"nodes": self.nodes, "delays": "aws", "degree": 4, "policy": "random"}
        return {
            "format": RUN_FORMAT,
            "run": self.run,
            "seed": 1,
            "scenario": {
                "name": "synthetic",
                "about": f"{self.nodes:,} nodes for tests",
                "protocol": "streams",
                "experiment": "delivery",
                "network": network,
                "faults": [],
            },
            "result": {
                "replay": "shoal lab run synthetic",
                "checks": {"safety": "passed", "liveness": "passed"},
                "figures": {
                    "nodes": self.nodes,
                    "delay_ms": {"mean": 290.0, "p99": 440.0},
                    "hops": {"mean": 9.0, "max": 20},
                    "duplicates_per_message": 2.0,
                    "connected": True,
                },
            },
            "tables": tables,
        }


def _id(node: int) -> bytes:
    return node.to_bytes(2, "big") * 10
