"""Processes of a network of topics are killed and stopped under load; nothing accepted gets lost.

    .venv/bin/python -m campaigns.topics_kills                        32 processes, 16 kills
    .venv/bin/python -m campaigns.topics_kills --kills 40 --seconds 200 --events 2000
    .venv/bin/python -m campaigns.topics_kills --seed 7 --json        other moments; for machines

Each process is one node with a folder, and reads two topics: an ordered one, in which only its
author publishes and all others ask it to, and an open one, in which everybody does. Publishers are
drawn from all that run. Meanwhile SIGKILL takes, in turn, the author of the ordered topic, that of
the open one, and twice the node that has most children in both trees. All but every fourth come
back after a few seconds, with their keys and folders, and go on after the last event in their
journals. The last kill is the author of the open topic, for good. One process is stopped (SIGSTOP)
all the time, and goes on (SIGCONT) after the last event.

What must hold then, at every process that runs, stopped and returned ones included:

- every event that was accepted is there; nothing else than what was issued
- in the ordered topic, restarts included, every event came once, after the one that it follows, and
  all chains end alike: one order for all
- in the open topic every event came once in each life; after a restart some come again, since no
  one event marks a place where topics fork

An event that was accepted is on its publisher's disk, and may be nowhere else if that is killed in
the same moment. So who is not to come back publishes nothing in its last second.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import msgspec

from campaigns.kills import Failure
from campaigns.topic_journal import Given
from campaigns.topic_processes import Processes
from campaigns.topic_words import Accepted, Refused, TopicFigures
from campaigns.workers import BOOTSTRAPS, announce, show
from shoal_lab.experiments.topics.ledger import Ledger
from shoal_lab.experiments.topics.workload import EventPlan, TopicPlan, Workload

ORDERED, OPEN = 0, 1
TURNS = ("ordered author", "open author", "busiest", "busiest, for good")
AWAY_S_MAX = 6.0
QUIET_S = 1.0  # before a death for good, after the last answer
ANSWER_S_MAX = 60.0  # the machine gives a request up by then
WATCH_S = 0.5
LOOK_S = 2.0  # a process that does not answer meanwhile has no children now
SHOWN = 3
PROCESSES_MIN = 8  # whom all meet first, authors, one that is stopped, and some to be killed


class Settings(msgspec.Struct, frozen=True):
    """One run."""

    processes: int = 32
    kills: int = 16
    events: int = 800
    seconds: float = 80.0
    """Of load."""
    size_bytes: int = 100
    seed: int = 1
    drain_s: float = 240.0

    def __post_init__(self) -> None:
        if self.processes < PROCESSES_MIN or self.kills < 1 or self.events < 1:
            raise Failure(
                f"{self.processes} processes, {self.kills} kills, {self.events} events: take "
                f"{PROCESSES_MIN} processes or more, and at least one kill and one event"
            )


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    settings: Settings
    killed: dict[str, int]
    """By whose turn it was."""
    running: int
    """At the end."""
    stopped_s: float
    stopped_lacked: int
    """Events that were elsewhere when it went on."""
    issued: int
    accepted: int
    refused: dict[str, int]
    unanswered: int
    """Whoever published them was killed."""
    due: int
    delivered: int
    told_again: int
    """In the open topic, after restarts."""
    drained_s: float
    """From the last event until everything was everywhere."""
    caught_up_s: float | None
    """How long that took the one that was stopped, after it went on."""
    seconds: float
    failure: str
    """Empty if all holds."""


class Run:
    """One run, while it goes on. A node has the number of its process."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self._rng = Random(f"topics and kills {settings.seed}")
        self.workload = _workload(settings, self._rng)
        nodes = settings.processes
        self.ledgers = [Ledger(self.workload, nodes, ordered=t == ORDERED) for t in (ORDERED, OPEN)]
        self.network = Processes(
            folder,
            nodes=nodes,
            processes=nodes,
            name=f"kills {settings.seed}",
            on_disk=True,
            tell=self.told,
        )
        self.killed: dict[str, int] = {}
        self._gone: set[int] = set()  # for good
        self._quiet: set[int] = set()  # publish nothing any more
        self._ready: set[int] = set()
        self._open: dict[int, int] = {}  # events without an answer, and who publishes them
        self._stopped = self._rng.randrange(BOOTSTRAPS + 2, nodes)
        self._failed_machines = 0

    async def play(self) -> Outcome:
        """Join, publish and kill, go on, and wait until all is everywhere."""
        begin_s = time.monotonic()
        everybody = range(self.settings.processes)
        async with self.network as network:
            announce(f"{self.settings.processes} processes run, topics are made")
            authors = {topic: plan.author for topic, plan in enumerate(self.workload.topics)}
            await network.create(authors, (ORDERED,))
            await network.read(dict.fromkeys((ORDERED, OPEN), everybody))
            announce(f"{self.settings.events} events and {self.settings.kills} kills begin")
            self._ready.update(everybody)
            stopped = network.workers[self._stopped]
            stopped.signal(signal.SIGSTOP)
            self._ready.remove(self._stopped)
            stopped_s = time.monotonic()
            load, kills = asyncio.create_task(self._publish()), asyncio.create_task(self._kill())
            try:
                while not (load.done() and kills.done()):
                    self._watch()
                    await asyncio.sleep(WATCH_S)
                await asyncio.gather(load, kills)
            finally:
                load.cancel()
                kills.cancel()
                await asyncio.gather(load, kills, return_exceptions=True)
            stopped.signal(signal.SIGCONT)
            announce("the last event was published, the stopped process goes on")
            last_s = time.monotonic()
            lacked = sum(node == self._stopped for node, _ in self._missing())
            caught_up_s = await self._drain(last_s)
            drained_s = time.monotonic() - last_s
            self._count_failures(await network.look())
        return self._outcome(
            stopped_s=last_s - stopped_s,
            stopped_lacked=lacked,
            drained_s=drained_s,
            caught_up_s=caught_up_s,
            seconds=time.monotonic() - begin_s,
        )

    @property
    def running(self) -> list[int]:
        """Who has to have everything."""
        return [node for node in range(self.settings.processes) if node not in self._gone]

    # Load

    async def _publish(self) -> None:
        begin_s = time.monotonic()
        for number, event in enumerate(self.workload.events):
            wait_s = begin_s + event.at_ms / 1000 - time.monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            author = self._rng.choice(sorted(self._ready - self._quiet))
            self.ledgers[event.topic].issue(number, time.time_ns())
            self._open[number] = author
            self.network.inject(author, event.topic, number, event.size_bytes)

    def told(self, said: Accepted | Refused) -> None:
        """A worker has an answer."""
        self._open.pop(said.event, None)
        ledger = self.ledgers[self.workload.events[said.event].topic]
        if isinstance(said, Accepted):
            ledger.accept(said.event, said.time_ns)
        else:
            ledger.refuse(said.reason.rpartition(": ")[2])

    # Deaths

    async def _kill(self) -> None:
        pause_s = self.settings.seconds / (self.settings.kills + 1)
        returns: list[asyncio.Task[None]] = []
        try:
            for number in range(self.settings.kills):
                await asyncio.sleep(self._rng.uniform(0.5, 1.5) * pause_s)
                last = number == self.settings.kills - 1
                turn = "open author, for good" if last else TURNS[number % len(TURNS)]
                victim = await self._victim(turn)
                if turn.endswith("for good"):
                    await self._hush(victim)
                    self._gone.add(victim)
                self._count_failures(await self.network.look(LOOK_S))
                self._ready.discard(victim)
                await self.network.kill(victim)
                self.killed[turn] = self.killed.get(turn, 0) + 1
                self._open = {e: node for e, node in self._open.items() if node != victim}
                if victim not in self._gone:
                    returns.append(asyncio.create_task(self._return(victim)))
            await asyncio.gather(*returns)
        finally:
            for task in returns:
                task.cancel()

    async def _victim(self, turn: str) -> int:
        """Whose turn it is; an author that is away is waited for."""
        authors = [topic.author for topic in self.workload.topics]
        named = {"ordered author": ORDERED, "open author": OPEN}.get(
            turn.removesuffix(", for good")
        )
        if named is not None:
            await self.network.wait(lambda: authors[named] in self._ready, "an author's return")
            return authors[named]
        children = dict.fromkeys(sorted(self._ready - set(authors)), 0)
        for worker in await self.network.look(LOOK_S):
            for node in worker.nodes:
                if node.number in children:
                    children[node.number] = sum(node.children.values())
        return max(children, key=lambda node: children[node])

    async def _hush(self, victim: int) -> None:
        self._quiet.add(victim)
        deadline_s = time.monotonic() + ANSWER_S_MAX
        while victim in self._open.values() and time.monotonic() < deadline_s:
            await asyncio.sleep(WATCH_S)
        await asyncio.sleep(QUIET_S)

    async def _return(self, victim: int) -> None:
        await asyncio.sleep(self._rng.uniform(0, AWAY_S_MAX))
        worker = await self.network.start(victim)
        await self.network.wait(lambda: bool(worker.ids), f"node {victim} to return")
        await self.network.read({ORDERED: [victim], OPEN: [victim]})
        self._ready.add(victim)

    # Watching

    async def _drain(self, begin_s: float) -> float | None:
        """Until everything is everywhere; when it was at the one that had been stopped."""
        deadline_s = begin_s + self.settings.drain_s
        caught_up_s = None
        while time.monotonic() < deadline_s:
            self._watch()
            missing = self._missing()
            if caught_up_s is None and not any(node == self._stopped for node, _ in missing):
                caught_up_s = time.monotonic() - begin_s
            broken = any(ledger.wrong for ledger in self.ledgers)
            if broken or not (missing or self._open or self._wrong()):
                break
            await asyncio.sleep(WATCH_S)
        return caught_up_s

    def _watch(self) -> None:
        self.network.check()
        self.network.follow(self.given)
        accepted = sum(len(ledger.accepted_ns) for ledger in self.ledgers)
        show(
            f"{sum(self.killed.values())} of {self.settings.kills} kills, {accepted} of "
            f"{self.settings.events} events accepted, {len(self._missing())} deliveries to come"
        )

    def given(self, node: int, given: Given | None) -> None:
        """A line of a journal."""
        if given is None:
            for ledger in self.ledgers:
                ledger.resume(node)
            return
        ledger = self.ledgers[given.topic]
        if given.event not in ledger.issued_ns:
            raise Failure(f"node {node} was given event {given.event}, which nobody published")
        ledger.gaps += given.gap
        ledger.arrive(node, given.event, given.id, given.parent, given.time_ns)

    def _missing(self) -> list[tuple[int, int]]:
        return [lack for ledger in self.ledgers for lack in ledger.missing(self.running)]

    def _wrong(self) -> list[str]:
        return [wrong for ledger in self.ledgers for wrong in ledger.check_order(self.running)]

    def _count_failures(self, workers: list[TopicFigures]) -> None:
        nodes = [node for worker in workers for node in worker.nodes]
        failed = sum(node.rejected.get("machine-failed", 0) for node in nodes)
        self._failed_machines = max(self._failed_machines, failed)

    def _outcome(
        self,
        *,
        stopped_s: float,
        stopped_lacked: int,
        drained_s: float,
        caught_up_s: float | None,
        seconds: float,
    ) -> Outcome:
        refused = self.ledgers[ORDERED].refused + self.ledgers[OPEN].refused
        issued = sum(len(ledger.issued_ns) for ledger in self.ledgers)
        accepted = sum(len(ledger.accepted_ns) for ledger in self.ledgers)
        due = sum(int(ledger.due(self.running).sum()) for ledger in self.ledgers)
        return Outcome(
            settings=self.settings,
            killed=self.killed,
            running=len(self.running),
            stopped_s=round(stopped_s, 1),
            stopped_lacked=stopped_lacked,
            issued=issued,
            accepted=accepted,
            refused=dict(refused),
            unanswered=issued - accepted - refused.total(),
            due=due,
            delivered=due - len(self._missing()),
            told_again=self.ledgers[OPEN].told_again,
            drained_s=round(drained_s, 1),
            caught_up_s=None if caught_up_s is None else round(caught_up_s, 1),
            seconds=round(seconds, 1),
            failure=self.failure(),
        )

    def failure(self) -> str:
        """What does not hold; empty if all does."""
        missing, wrong = self._missing(), self._wrong()
        if wrong:
            return f"{len(wrong)} times wrong: {'; '.join(wrong[:SHOWN])}"
        if missing:
            told = ", ".join(f"event {event} at node {node}" for node, event in missing[:SHOWN])
            return f"{len(missing)} deliveries are missing: {told}"
        if gaps := sum(ledger.gaps for ledger in self.ledgers):
            return f"{gaps} times a reader was told of a gap"
        if self._failed_machines:
            return f"{self._failed_machines} times a machine failed: see above"
        return ""


def _workload(settings: Settings, rng: Random) -> Workload:
    """Everybody reads both topics; who publishes an event is drawn when it is due."""
    everybody = tuple(range(settings.processes))
    topics = tuple(TopicPlan(BOOTSTRAPS + topic, everybody) for topic in (ORDERED, OPEN))
    interval_ms = settings.seconds * 1000 / settings.events
    events = [
        EventPlan(rng.choice((ORDERED, OPEN)), 0, settings.size_bytes, number * interval_ms)
        for number in range(settings.events)
    ]
    return Workload(topics, tuple(events))


def run(settings: Settings, folder: Path) -> Outcome:
    """From start to end; Failure if it does not come to that."""
    return asyncio.run(Run(settings, folder).play())


def main() -> None:
    """The command."""
    defaults = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m campaigns.topics_kills",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--processes", type=int, default=defaults.processes, help="8 or more")
    parser.add_argument("--kills", type=int, default=defaults.kills)
    parser.add_argument("--events", type=int, default=defaults.events)
    parser.add_argument("--seconds", type=float, default=defaults.seconds, help="of load")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--drain-s", type=float, default=defaults.drain_s)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = vars(parser.parse_args())
    as_json = options.pop("json")
    with tempfile.TemporaryDirectory(prefix="shoal-topics-") as folder:
        try:
            outcome = run(Settings(**options), Path(folder))
        except Failure as failure:
            sys.exit(f"\n{failure}")
    show("")
    if as_json:
        print(msgspec.json.encode(outcome).decode())
    else:
        for name, value in msgspec.structs.asdict(outcome).items():
            print(f"{name:<14}{value}")
    sys.exit(1 if outcome.failure else 0)


if __name__ == "__main__":
    main()
