"""Search nodes come and go for two hours: the circle must hold, and nobody may be left alone.

    .venv/bin/python campaigns/search_churn.py                       20 seeds of 200 nodes
    .venv/bin/python campaigns/search_churn.py --first 7 --seeds 1   seed 7 again
    .venv/bin/python campaigns/search_churn.py --json                one object a line, for machines
    .venv/bin/python campaigns/search_churn.py --nodes 60 --hours 0.5 --seeds 2    a taste

Nodes are spread over the AWS delay table. A node stays an hour in the mean, exponentially; then it
leaves, or, one time in ten, dies without a word, and another one starts for it at once. So the
network keeps its size, and in two hours twice as many nodes come and go as it has. Two neighbours
that leave within the same second would be rare. So it is seen to: of the nodes that leave, one in
ten takes its slave at one place along; and when a node joins, one time in ten a slave that is to
make room for it leaves in that moment.

What must hold: every node that runs has a neighbour, but for a minute at most; that is looked at
every second. When the churn has ended and the network had time to settle, both ends of every edge
agree, all nodes are connected, and both races of leaving nodes were run. Holes are what crashes
leave: they are counted.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from multiprocessing import get_context

import msgspec

from shoal.base.errors import ShoalError
from shoal.base.ids import short_node_id
from shoal.protocols.search.circle.locations import Split
from shoal.sim.host import SimNode
from shoal.sim.simulation import Simulation
from shoal_lab.experiments.search.network import SearchNetwork
from shoal_lab.experiments.search.survey import Isolation, Survey, survey
from shoal_lab.testbed.process_memory import quiet_collector

JOIN_INTERVAL_S = 0.2
SETTLE_S = 100.0  # after the last join, and after the churn: nobody waits for anything after it
RACED = 0.1  # of the leaves, and of the joins
AMBUSH_S = (0.05, 20.0)  # how often we look whether a newcomer is let in, and for how long
LOOK_S = 1.0
SAMPLES = 12  # of the holes, over the churn
ISOLATED_S_MAX = 60.0
RACES = ("both-leave", "leave-during-split")


class Settings(msgspec.Struct, frozen=True):
    """One run."""

    nodes: int = 200
    hours: float = 2.0
    session_s: float = 3600.0
    crashes: float = 0.1
    """Departures without a word, of all."""


class Outcome(msgspec.Struct, frozen=True):
    """What came of it."""

    seed: int
    joins: int
    leaves: int
    crashes: int
    holes: list[int]
    """Neighbours that were missing, at even times, and at the end."""
    places: int
    longest_isolation_s: float
    longest_leave_s: float
    """From the wish to leave until nothing was left to do."""
    races: dict[str, int]
    degrees: dict[int, int]
    """At the end: how many nodes have so many neighbours."""
    cpu_s: float
    failure: str
    """Empty if all holds."""


class ChurnRun:
    """One network, from the first join to the count."""

    def __init__(self, seed: int, settings: Settings, replay: str) -> None:
        self.settings = settings
        self.seed = seed
        self.network = SearchNetwork(seed, settings.nodes, replay=replay)
        self.simulation: Simulation = self.network.simulation
        self.isolation = Isolation()
        self.holes: list[int] = []
        self.longest_leave_s = 0.0
        self._rng = self.simulation.random("churn")
        self._leaving: dict[SimNode, float] = {}
        self.begin_s = settings.nodes * JOIN_INTERVAL_S + SETTLE_S
        self.end_s = self.begin_s + 3600 * settings.hours

    def play(self) -> Survey:
        """The whole run; the survey is of its end."""
        self.network.join_all(JOIN_INTERVAL_S)
        for node in self.network.nodes:
            self._plan_end(node, self.begin_s)
        self.simulation.at_s(LOOK_S, self._look)
        with quiet_collector():
            for sample in range(1, SAMPLES + 1):
                share = sample / SAMPLES
                self.simulation.run_until_s(self.begin_s + share * (self.end_s - self.begin_s))
                self.holes.append(survey(self.network.circles()).holes)
            self.simulation.run_until_s(self.end_s + SETTLE_S)
        seen = survey(self.network.circles())
        self.holes.append(seen.holes)
        return seen

    def _plan_end(self, node: SimNode, from_s: float) -> None:
        end_s = from_s + self._rng.expovariate(1 / self.settings.session_s)
        if end_s < self.end_s:
            self.simulation.at_s(end_s, partial(self._go, node))

    def _go(self, node: SimNode) -> None:
        if node.host is None or node in self._leaving:
            return  # its neighbour, or a newcomer, took it along
        slaves = self._slaves(node)
        if self._rng.random() < self.settings.crashes:
            self.network.crash(node)
            self._replace(node)
        else:
            self._leave(node)
            if slaves and self._rng.random() < RACED:
                self._leave(self._rng.choice(slaves))

    def _slaves(self, node: SimNode) -> list[SimNode]:
        """Its slaves, of those that stay."""
        edges = [location.slave for location in self.network.circle(node).ring.locations]
        nodes = [self.simulation.nodes[edge.peer] for edge in edges if edge is not None]
        return [one for one in nodes if one is not node and one not in self._leaving]

    def _leave(self, node: SimNode) -> None:
        self._leaving[node] = self.simulation.time_s
        self.network.leave(node)
        self._replace(node)

    def _replace(self, node: SimNode) -> None:
        newcomer = self.network.add()
        self.network.start(newcomer)
        self._plan_end(newcomer, self.simulation.time_s)
        if self._rng.random() < RACED:
            self._ambush(newcomer, self.simulation.time_s + AMBUSH_S[1])

    def _ambush(self, newcomer: SimNode, until_s: float) -> None:
        """Let a slave leave that is to make room for a newcomer, as soon as there is one."""
        for node in self.network.staying():
            for location in self.network.circle(node).ring.locations:
                split, slave = location.below, location.slave
                if not isinstance(split, Split) or split.origin.node != newcomer.id:
                    continue
                victim = None if slave is None else self.simulation.nodes[slave.peer]
                if victim is not None and victim in self.network.staying():
                    self._leave(victim)
                    return
        if self.simulation.time_s < until_s:
            again = partial(self._ambush, newcomer, until_s)
            self.simulation.at_s(self.simulation.time_s + AMBUSH_S[0], again)

    def _look(self) -> None:
        now_s = self.simulation.time_s
        self.isolation.look(self.network.circles(), now_s)
        for node, since_s in list(self._leaving.items()):
            self.longest_leave_s = max(self.longest_leave_s, now_s - since_s)
            if node.host is None:
                del self._leaving[node]
        self.simulation.at_s(now_s + LOOK_S, self._look)


def verdict(seen: Survey, isolation: Isolation, races: Mapping[str, int]) -> str:
    """What does not hold, if anything."""
    wrong: list[str] = []
    if seen.half_open:
        wrong.append(f"{len(seen.half_open)} edges are half open, {seen.half_open[0]} among them")
    if seen.components != 1:
        wrong.append(f"the network is in {seen.components} parts, of {seen.largest} nodes at most")
    if isolation.victim is not None and isolation.longest_s > ISOLATED_S_MAX:
        name = short_node_id(isolation.victim)
        wrong.append(f"node {name} was alone for {isolation.longest_s:.0f} s")
    missing = [race for race in RACES if not races.get(race)]
    if missing:
        wrong.append(f"nobody ran the race {missing[0]}: take more nodes, or more time")
    return "; ".join(wrong)


def run_one(seed: int, settings: Settings) -> Outcome:
    """One seed, in a process of its own."""
    begin_s, failure = time.process_time(), ""
    run = ChurnRun(seed, settings, replay_of(seed, settings))
    run.simulation.progress = partial(_tell, time.monotonic(), seed, run.end_s + SETTLE_S)
    try:
        seen = run.play()
        failure = verdict(seen, run.isolation, run.network.races)
    except ShoalError as error:
        failure = str(error)
        seen = survey(run.network.circles())
    counts = run.network.counts
    return Outcome(
        seed=seed,
        joins=counts["starts"] - settings.nodes,
        leaves=counts["leaves"],
        crashes=counts["crashes"],
        holes=run.holes,
        places=seen.places,
        longest_isolation_s=round(run.isolation.longest_s, 1),
        longest_leave_s=round(run.longest_leave_s, 1),
        races=dict(sorted(run.network.races.items())),
        degrees=seen.degrees,
        cpu_s=round(time.process_time() - begin_s, 1),
        failure=failure,
    )


def replay_of(seed: int, settings: Settings) -> str:
    """The command that repeats one run."""
    options = [
        *("--first", str(seed), "--seeds", "1", "--nodes", str(settings.nodes)),
        *("--hours", f"{settings.hours:g}", "--session", f"{settings.session_s:g}"),
        *("--crashes", f"{settings.crashes:g}"),
    ]
    return shlex.join([".venv/bin/python", "campaigns/search_churn.py", *options])


def outcomes(seeds: range, settings: Settings, processes: int) -> Iterator[Outcome]:
    """One after the other, as they are done."""
    work = partial(run_one, settings=settings)
    if processes == 1 or len(seeds) == 1:
        yield from map(work, seeds)
        return
    with get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(work, seeds)


def _tell(begun_s: float, seed: int, end_s: float, simulation: Simulation) -> None:
    if sys.stderr.isatty():
        took_s = time.monotonic() - begun_s
        done = min(1.0, simulation.time_s / end_s)
        print(f"\rseed {seed}: {done:4.0%} in {took_s:.0f} s", end="", file=sys.stderr)


def main() -> None:
    """The command."""
    defaults = Settings()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20, help="how many (20)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (1)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once (2)")
    parser.add_argument("--nodes", type=int, default=defaults.nodes)
    parser.add_argument("--hours", type=float, default=defaults.hours, help="simulated (2)")
    session_s = defaults.session_s
    parser.add_argument("--session", type=float, default=session_s, help="mean, in s (3600)")
    parser.add_argument("--crashes", type=float, default=defaults.crashes, help="of all ends (0.1)")
    parser.add_argument("--json", action="store_true", help="one object a line")
    options = parser.parse_args()
    settings = Settings(options.nodes, options.hours, options.session, options.crashes)
    seeds = range(options.first, options.first + options.seeds)
    print(f"{len(seeds)} runs of {options.nodes} nodes begin", file=sys.stderr)
    bad = 0
    for done, outcome in enumerate(outcomes(seeds, settings, options.jobs), start=1):
        bad += bool(outcome.failure)
        if options.json:
            print(msgspec.json.encode(outcome).decode(), flush=True)
        races = ", ".join(f"{times} times {race}" for race, times in outcome.races.items())
        print(
            f"{done} of {len(seeds)}: seed {outcome.seed}: {outcome.joins} joins, "
            f"{outcome.leaves} leaves, {outcome.crashes} crashes; holes "
            f"{' '.join(map(str, outcome.holes))} of {2 * outcome.places} neighbours; alone for "
            f"{outcome.longest_isolation_s:g} s at most, leaving for {outcome.longest_leave_s:g}; "
            f"{races}; {outcome.cpu_s:.0f} s of CPU",
            file=sys.stderr,
        )
        if outcome.failure:
            replay = replay_of(outcome.seed, settings)
            print(f"  BAD: {outcome.failure}\n  see it again: {replay}", file=sys.stderr)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
