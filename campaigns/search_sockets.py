"""Needles in a network of processes: all are found, and again after a third of it was killed.

    .venv/bin/python -m campaigns.search_sockets                      32 processes, 1,000 documents
    .venv/bin/python -m campaigns.search_sockets --processes 12 --documents 150 --pause-s 20
    .venv/bin/python -m campaigns.search_sockets --seed 7 --json      others die; for machines

Each process is one node, with links to others over loopback. When all know how many they are,
documents are put by nodes that are drawn: a third of them managed, fading and durable each. Every
document has twenty words that others have, too, and one of its own, its needle. Then each needle
is searched for once, with confidence 0.99, by a node that is drawn. After that a third of the
processes is killed (SIGKILL), whoever it is, all in one moment. A minute later the living search
for every needle again.

What must hold: 98 % of the needles are found, before and after, and nothing else is. After the
kills that is said of documents that have to be there. Managed ones go with their owners, when
nobody has cast them for 15 minutes: how many of those are still found is counted, and asked of
nobody. Fading and durable ones have to be there whoever put them, also if all that kept them were
killed.

The seed says who owns, searches and dies, and which keys nodes have; what chance there is in links
and machines is not repeated.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from random import Random

import msgspec

from campaigns.kills import Failure
from campaigns.search_needles import Hunt, Needle, Tally, make_needles
from campaigns.search_words import (
    Answered,
    Ask,
    FromWorker,
    Kept,
    NodeFigures,
    Put,
    Refused,
    SearchFigures,
    SearchWork,
)
from campaigns.worker_words import NodeWork
from campaigns.workers import Workers, announce, show
from shoal_lab.experiments.topics.figures import PerNode

MODULE = "campaigns.search_worker"
FOUND_PERCENT_MIN = 98.0
UNDER_WAY_MAX = 64  # searches, of 3 s each: a machine that is busy with others gets its time
MEASURED_WITHIN = 0.05
WATCH_S = 1.0
PATIENCE_S = 300.0  # two rounds of measurement, and a half
SHOWN = 3
PROCESSES_MIN = 6  # fewer are all neighbours of each other


class Settings(msgspec.Struct, frozen=True):
    """One run."""

    processes: int = 32
    documents: int = 1000
    per_second: float = 10.0
    """Documents that are put, and searches that begin."""
    confidence: float = 0.99
    killed: float = 1 / 3
    pause_s: float = 60.0
    """After the kills."""
    seed: int = 1
    beat_ms: float | None = None
    """Between pings of neighbours; None: as the protocol has it, 5 s."""

    def __post_init__(self) -> None:
        if self.processes < PROCESSES_MIN or self.documents < 1 or self.per_second <= 0:
            raise Failure(
                f"{self.processes} processes, {self.documents} documents, {self.per_second} a "
                f"second: take {PROCESSES_MIN} processes or more, and at least one document"
            )
        if not 0 <= self.killed < 1:
            raise Failure(f"{self.killed} of the processes killed: take a part of one, as 0.33")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    settings: Settings
    whole: Hunt
    killed: list[int]
    after: Hunt
    measured_s: float
    """From the last start until all knew how many they are."""
    copies_wanted: float
    """Nodes to which a document was sent, in the mean."""
    cpu_s: float
    """Of all processes that lived to the end, from start to end."""
    interpreter_mib: float
    """What a process took before its node, in the mean."""
    rejected: dict[str, int]
    seconds: float
    failure: str
    """Empty if all holds."""


class SearchWorkers(Workers[NodeFigures]):
    """Processes of one node each."""

    def __init__(self, settings: Settings, folder: Path, hear: Callable[..., None]) -> None:
        nodes = settings.processes
        name = f"search {settings.seed}"
        super().__init__(
            MODULE, FromWorker, folder, nodes=nodes, processes=nodes, name=name, hear=hear
        )
        self._beat_ms = settings.beat_ms

    def work(self, nodes: tuple[NodeWork, ...]) -> SearchWork:
        """What a worker is told first."""
        return SearchWork(nodes, self._beat_ms)


class Run:
    """One run, while it goes on. A node has the number of its process."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self._rng = Random(f"search over sockets {settings.seed}")
        self.needles = make_needles(self._rng, settings.documents, settings.processes)
        self.network = SearchWorkers(settings, folder, self.told)
        self._kept: dict[int, int] = {}
        self._tally: Tally | None = None

    async def play(self) -> Outcome:
        """Join, put, search, kill, and search again."""
        begin_s = time.monotonic()
        async with self.network as network:
            announce(f"{self.settings.processes} processes run")
            joined_s = time.monotonic()
            await self._until(self._measured, "all to know how many they are")
            measured_s = time.monotonic() - joined_s
            announce(f"all know how many they are; {self.settings.documents} documents are put")
            await self._put()
            announce("every needle is searched for")
            whole = await self._hunt(range(self.settings.processes))
            killed = await self._kill()
            announce(f"{len(killed)} processes are killed, and {self.settings.pause_s:g} s pass")
            await self._pause()
            announce("every needle is searched for")
            after = await self._hunt(sorted(network.workers))
            last = await network.look()
        rejected = _rejected(last)
        return Outcome(
            settings=self.settings,
            whole=whole,
            killed=killed,
            after=after,
            measured_s=measured_s,
            copies_wanted=sum(self._kept.values()) / len(self._kept),
            cpu_s=sum(worker.cpu_s for worker in last),
            interpreter_mib=sum(worker.bare_bytes for worker in last) / len(last) / (1 << 20),
            rejected=rejected,
            seconds=time.monotonic() - begin_s,
            failure=failure(whole, after, rejected.get("machine-failed", 0)),
        )

    def told(self, said: Kept | Answered | Refused) -> None:
        """A worker has an answer."""
        if self._tally is not None and not isinstance(said, Kept):
            self._tally.told(said)
        elif isinstance(said, Kept):
            self._kept[said.document] = said.nodes
        else:
            raise Failure(f"document {said.document} was not put: {said}")

    # Steps

    async def _put(self) -> None:
        def put(needle: Needle) -> None:
            command = Put(needle.owner, needle.number, needle.content, needle.life)
            self.network.of(needle.owner).say(command)

        await self._paced(put, lambda: len(self._kept), "documents put")
        held = -1

        async def arrived() -> bool:
            nonlocal held
            before, held = held, sum(node.held for node in _nodes(await self.network.look()))
            return held == before

        await self._until(arrived, "documents to arrive")

    async def _hunt(self, living: Iterable[int]) -> Hunt:
        searchers = list(living)
        tally = self._tally = Tally(self.needles, searchers)
        before = await self.network.look()
        begin_s = time.monotonic()

        def ask(needle: Needle) -> None:
            node = self._rng.choice(searchers)
            command = Ask(node, needle.number, needle.word, self.settings.confidence)
            self.network.of(node).say(command)

        await self._paced(ask, lambda: len(tally), "searches are over")
        seconds = time.monotonic() - begin_s
        return tally.hunt(before, await self.network.look(), seconds)

    async def _kill(self) -> list[int]:
        count = round(self.settings.killed * self.settings.processes)
        killed = sorted(self._rng.sample(range(self.settings.processes), count))
        await asyncio.gather(*[self.network.kill(number) for number in killed])
        return killed

    async def _pause(self) -> None:
        end_s = time.monotonic() + self.settings.pause_s
        while (left_s := end_s - time.monotonic()) > 0:
            self.network.check()
            show(f"{left_s:.0f} s to go")
            await asyncio.sleep(min(WATCH_S, left_s))

    async def _measured(self) -> bool:
        nodes = _nodes(await self.network.look())
        count = self.settings.processes
        known = sum(abs(node.nodes - count) <= MEASURED_WITHIN * count for node in nodes)
        show(f"{known} of {count} know how many they are")
        return known == count

    async def _paced(
        self, begin: Callable[[Needle], None], done: Callable[[], int], what: str
    ) -> None:
        """Begin with each needle at its time, and wait for the last."""
        begin_s = time.monotonic()
        for number, needle in enumerate(self.needles):
            due_s = begin_s + number / self.settings.per_second
            while time.monotonic() < due_s or number - done() >= UNDER_WAY_MAX:
                self.network.check()
                await asyncio.sleep(min(WATCH_S, max(0.01, due_s - time.monotonic())))
            begin(needle)
            show(f"{done()} of {len(self.needles)} {what}")
        await self.network.wait(lambda: done() == len(self.needles), f"all {what}")

    async def _until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not await condition():
            self.network.check()
            if time.monotonic() > deadline_s:
                raise Failure(f"waited {PATIENCE_S:g} s for {what}")
            await asyncio.sleep(WATCH_S)


def failure(whole: Hunt, after: Hunt, failed_machines: int = 0) -> str:
    """What does not hold; empty if all does."""
    for when, hunt in (("before the kills", whole), ("after the kills", after)):
        if hunt.wrong:
            return f"{when}, {len(hunt.wrong)} wrong: {'; '.join(hunt.wrong[:SHOWN])}"
        if hunt.found_percent < FOUND_PERCENT_MIN:
            return (
                f"{when}, {hunt.found} of {hunt.due} needles were found: less than "
                f"{FOUND_PERCENT_MIN:g} %"
            )
    return f"{failed_machines} times a machine failed: see above" if failed_machines else ""


def _nodes(workers: Iterable[SearchFigures]) -> list[NodeFigures]:
    return [node for worker in workers for node in worker.nodes]


def _rejected(workers: Iterable[SearchFigures]) -> dict[str, int]:
    rejected: dict[str, int] = {}
    for node in _nodes(workers):
        for reason, count in node.rejected.items():
            rejected[reason] = rejected.get(reason, 0) + count
    return rejected


def run(settings: Settings, folder: Path) -> Outcome:
    """From start to end; Failure if it does not come to that."""
    return asyncio.run(Run(settings, folder).play())


# For people


def table(outcome: Outcome) -> list[str]:
    """Both hunts, side by side."""
    hunts = (outcome.whole, outcome.after)

    def line(name: str, show_one: Callable[[Hunt], str]) -> str:
        return f"{name:<28}" + "".join(f"{show_one(hunt):>24}" for hunt in hunts)

    def spread(name: str, of: Callable[[Hunt], PerNode], digits: int) -> str:
        return line(f"{name}, mean p99 max", lambda hunt: _spread(of(hunt), digits))

    lines = [
        f"{'':<28}{'whole network':>24}{f'{len(outcome.killed)} killed':>24}",
        line("processes", lambda hunt: str(hunt.processes)),
        line("found of due", lambda hunt: f"{hunt.found} of {hunt.due}"),
        line("", lambda hunt: f"{hunt.found_percent:.1f} %"),
        line("missed", lambda hunt: ", ".join(f"{n} {life}" for life, n in hunt.missed.items())),
        line("lapsing, found all the same", lambda hunt: f"{hunt.lapsing_found} of {hunt.lapsing}"),
        line(
            "confidence, mean least",
            lambda hunt: f"{hunt.confidence.mean:.4f} {hunt.confidence_least:.4f}",
        ),
        spread("nodes asked", lambda hunt: hunt.asked, 1),
        line("nodes of the network, said", lambda hunt: f"{hunt.nodes_believed.mean:.1f}"),
        line("holders of a document", lambda hunt: f"{hunt.holders:.1f}"),
        spread("first hit ms", lambda hunt: hunt.first_hit_ms, 0),
        line("casts and answers a search", lambda hunt: _messages(hunt, "BUBBLE_CAST", "MATCH")),
        line("all messages a search", lambda hunt: _messages(hunt, *hunt.messages)),
        line("KiB a search", lambda hunt: f"{hunt.kib:.1f}"),
        spread("CPU s a process", lambda hunt: hunt.cpu_s, 2),
        spread("memory MiB a process", lambda hunt: hunt.memory_mib, 1),
        line("seconds", lambda hunt: f"{hunt.seconds:.0f}"),
        f"a document was sent to {outcome.copies_wanted:.1f} nodes; all knew how many they are "
        f"after {outcome.measured_s:.0f} s; an interpreter takes {outcome.interpreter_mib:.0f} MiB",
        f"{outcome.seconds:.0f} s in all; those who lived to the end took {outcome.cpu_s:.0f} CPU "
        f"seconds; rejected: {outcome.rejected or 'nothing'}",
    ]
    if outcome.failure:
        lines.append(f"BAD: {outcome.failure}")
    return lines


def _messages(hunt: Hunt, *kinds: str) -> str:
    return f"{sum(hunt.messages.get(kind, 0.0) for kind in kinds):.1f}"


def _spread(values: PerNode, digits: int) -> str:
    return " ".join(f"{value:,.{digits}f}" for value in (values.mean, values.p99, values.max))


def main() -> None:
    """The command."""
    defaults = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m campaigns.search_sockets",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--processes", type=int, default=defaults.processes, help="6 or more")
    parser.add_argument("--documents", type=int, default=defaults.documents)
    parser.add_argument(
        "--per-second", type=float, default=defaults.per_second, help="documents, and searches"
    )
    parser.add_argument("--confidence", type=float, default=defaults.confidence)
    parser.add_argument(
        "--killed", type=float, default=defaults.killed, help="of the processes, as a part of one"
    )
    parser.add_argument("--pause-s", type=float, default=defaults.pause_s, help="after the kills")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument(
        "--beat-ms", type=float, help="between pings, for a short run; 5,000 by protocol"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = vars(parser.parse_args())
    as_json = options.pop("json")
    with tempfile.TemporaryDirectory(prefix="shoal-search-") as folder:
        try:
            outcome = run(Settings(**options), Path(folder))
        except Failure as failed:
            sys.exit(f"\n{failed}")
    show("")
    print(msgspec.json.encode(outcome).decode() if as_json else "\n".join(table(outcome)))
    sys.exit(1 if outcome.failure else 0)


if __name__ == "__main__":
    main()
