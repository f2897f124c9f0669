"""The tables of a run of durable topics."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from shoal.kernel.records import EventDelivered
from shoal.kernel.tables import TENTH_NS, run_table_schema
from shoal.lab.records import KeptRecords
from shoal.lab.topics.figures import MOST, NEVER_NS, accept_times_ns, event_times_ns
from shoal.lab.topics.ledger import Ints, Ledger
from shoal.sim.trace import Kinds


class TopicRecords:
    """A trace sink. Deliveries are the ledger's: record by record they would be 150 MB."""

    def __init__(self) -> None:
        self._kept = KeptRecords()

    def __call__(self, kinds: Kinds) -> None:
        """Take a batch of the trace."""
        for kind in [kind for kind in kinds if kind is not EventDelivered]:
            for row in kinds[kind]:
                self._kept.add(row)

    def tables(self, run: str, ledger: Ledger, running: list[int]) -> dict[str, pa.Table]:
        """`topic_events`, and records of all other kinds."""
        return {"topic_events": topic_events(run, ledger, running), **self._kept.tables(run)}


def topic_events(run: str, ledger: Ledger, running: list[int]) -> pa.Table:
    """One row for each event that was issued."""
    due, arrivals = ledger.due(running), ledger.arrivals(running)
    issued = np.array(sorted(ledger.issued_ns), np.int64)
    plans = [ledger.workload.events[event] for event in issued]
    columns = {
        "run": [run] * len(issued),
        "event": issued,
        "topic": [plan.topic for plan in plans],
        "time_ns": [ledger.issued_ns[event] for event in issued.tolist()],
        "size_bytes": [plan.size_bytes for plan in plans],
        "accepted_tenths_ms": _tenths(accept_times_ns(ledger))[issued],
        "due": due[issued],
        "delivered": np.bincount(arrivals.events, minlength=len(due))[issued],
        "most_tenths_ms": _tenths(event_times_ns(ledger, due, arrivals, MOST))[issued],
        "all_tenths_ms": _tenths(event_times_ns(ledger, due, arrivals, 1.0))[issued],
    }
    schema = run_table_schema("topic_events")
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _tenths(times_ns: Ints) -> Ints:
    return np.where(times_ns == NEVER_NS, -1, (times_ns + TENTH_NS // 2) // TENTH_NS)
