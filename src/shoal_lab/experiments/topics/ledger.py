"""What was injected, who was given what and when, and in which order.

The same for every system. An event is injected once its network has taken it on: for topics, when
EventAccepted is told. It is due at every reader of its topic that runs at the end; readers that
died and came back are among them.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shoal_lab.experiments.topics.workload import Workload

NUMBER_BYTES = 8  # payloads begin with the number of their event

Ints = npt.NDArray[np.int64]


class Arrivals(NamedTuple):
    """Every delivery that was due and came, once each, as columns."""

    events: Ints
    times_ns: Ints


def payload_of(event: int, filling: bytes) -> bytes:
    """What an event carries; no two carry the same."""
    return event.to_bytes(NUMBER_BYTES, "big") + filling


def event_of(payload: bytes) -> int:
    """The number of the event that carries it."""
    return int.from_bytes(payload[:NUMBER_BYTES], "big")


class Ledger:
    """Keeps count while a run goes on. Events have their numbers in the workload."""

    def __init__(self, workload: Workload, nodes: int, *, ordered: bool) -> None:
        self.workload = workload
        self.ordered = ordered
        self.issued_ns: dict[int, int] = {}
        self.accepted_ns: dict[int, int] = {}
        self.refused: Counter[str] = Counter()
        self.told_again = 0
        """Events that a reader was given once more after it came back. Where topics fork, there is
        no one event after which everything is new."""
        self.gaps = 0
        """Times that a reader was told of something missing."""
        self.wrong: list[str] = []
        """What must not happen: broken chains, and events told twice."""
        self.last: dict[tuple[int, int], bytes] = {}
        """By reader and topic, the last event that it was given: its checkpoint."""
        self._lives = [1] * nodes
        self._given = [bytearray(len(workload.events)) for _ in range(nodes)]  # in which life
        self._events = array("q")
        self._readers = array("q")
        self._times_ns = array("q")

    # While the run goes on

    def issue(self, event: int, now_ns: int) -> None:
        """An injector hands an event to a node."""
        self.issued_ns[event] = now_ns

    def accept(self, event: int, now_ns: int) -> None:
        """The network has taken it on."""
        self.accepted_ns[event] = now_ns

    def refuse(self, reason: str) -> None:
        """The network has not."""
        self.refused[reason] += 1

    def resume(self, reader: int) -> None:
        """A reader that died begins anew at its checkpoints."""
        self._lives[reader] = min(255, self._lives[reader] + 1)

    def arrive(self, reader: int, event: int, id: bytes, parent: bytes | None, now_ns: int) -> None:
        """A reader is given an event, which has this name and follows that one."""
        topic = self.workload.events[event].topic
        last = self.last.get((reader, topic))
        if self.ordered and parent != last:
            self.wrong.append(
                f"node {reader} was given {_short(id)} of topic {topic}, which follows "
                f"{_short(parent)}, after {_short(last)}"
            )
        self.last[reader, topic] = id
        given, life = self._given[reader], self._lives[reader]
        if given[event]:
            self.told_again += 1
            if self.ordered or given[event] == life:
                self.wrong.append(f"node {reader} was given event {event} of topic {topic} twice")
        else:
            self._events.append(event)
            self._readers.append(reader)
            self._times_ns.append(now_ns)
        given[event] = life

    # At the end

    def readers_of(self, topic: int, running: Collection[int]) -> list[int]:
        """Those that run."""
        return [reader for reader in self.workload.topics[topic].readers if reader in running]

    def due(self, running: Collection[int]) -> Ints:
        """How often each event of the workload has to be there; of those that were not injected,
        never."""
        readers = [len(self.readers_of(t, running)) for t in range(len(self.workload.topics))]
        due = np.zeros(len(self.workload.events), np.int64)
        for event in self.accepted_ns:
            due[event] = readers[self.workload.events[event].topic]
        return due

    def arrivals(self, running: Collection[int]) -> Arrivals:
        """All that was due and came."""
        readers, events = np.array(self._readers, np.int64), np.array(self._events, np.int64)
        runs = np.zeros(len(self._given), np.bool_)
        runs[list(running)] = True
        injected = np.zeros(len(self.workload.events), np.bool_)
        injected[list(self.accepted_ns)] = True
        kept = runs[readers] & injected[events]
        return Arrivals(events[kept], np.array(self._times_ns, np.int64)[kept])

    def missing(self, running: Collection[int]) -> list[tuple[int, int]]:
        """Reader and event of what was due and did not come."""
        return [
            (reader, event)
            for event in self.accepted_ns
            for reader in self.readers_of(self.workload.events[event].topic, running)
            if not self._given[reader][event]
        ]

    def check_order(self, running: Collection[int]) -> list[str]:
        """What is wrong: every reader of an ordered topic must have been given one chain without
        holes, from the first event on, that ends where all others end. Ends alone are compared:
        an event names the one that it follows, so equal ends are equal chains."""
        wrong = list(self.wrong)
        if self.ordered:
            for topic in range(len(self.workload.topics)):
                ends = {self.last.get((r, topic)) for r in self.readers_of(topic, running)}
                if len(ends) > 1:
                    told = ", ".join(sorted(map(_short, ends)))
                    wrong.append(f"topic {topic} ends differently for its readers: {told}")
        return wrong


def _short(id: bytes | None) -> str:
    return "nothing" if id is None else id[-4:].hex()
