"""Nodes die and return, the network falls in two: every event of a topic must reach all readers.

    .venv/bin/python campaigns/topics.py                          20 seeds: hours
    .venv/bin/python campaigns/topics.py --first 7 --seeds 1      seed 7 again
    .venv/bin/python campaigns/topics.py --only ordered           one kind of topics
    .venv/bin/python campaigns/topics.py --json                   one object a line, for machines
    .venv/bin/python campaigns/topics.py --nodes 24 --topics 6 --events 300 --seeds 2    a taste

The scenario is topics-churn: a fifth of the nodes dies at once and is back after a minute, with its
disk, first in a whole network and then in one that is cut in halves for five minutes. Events are
published all the time, 20 minutes. A reader that comes back goes on after the last event that it
was given. Every seed runs twice: with ordered topics, in which only the author publishes and all
others ask it to, and with topics in which everybody does.

What must hold, 5 minutes after the last event: whatever was accepted is with every reader, once. In
ordered topics every reader was given one chain without holes, restarts included, and all the same.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing import get_context

import msgspec

from shoal.base.errors import ShoalError
from shoal.sim.checkers import Checker
from shoal.sim.simulation import Simulation
from shoal_lab.experiments.topics.experiment import TopicsExperiment
from shoal_lab.scenarios.scenario import Scenario, find_scenario, load_scenario
from shoal_lab.testbed.process_memory import quiet_collector

SCENARIO = "topics-churn"
PUBLISHING_S = 1200.0  # faults are within it, however many events there are
KINDS = ("unordered", "ordered")


class Settings(msgspec.Struct, frozen=True):
    """One run."""

    nodes: int = 100
    topics: int = 23
    events: int = 6000
    slow: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """What came of it."""

    kind: str
    seed: int
    issued: int
    injected: int
    refused: dict[str, int]
    unanswered: int
    """Whoever published them died before it had an answer."""
    due: int
    delivered: int
    wrong: int
    gaps: int
    told_again: int
    run_to_100_s: float | None
    """After the last event."""
    rpcs_per_event: float
    cpu_s: float
    failure: str
    """Empty if all holds."""


def scenario_of(kind: str, settings: Settings) -> Scenario:
    """The scenario at this size: publishing takes as long as it does at full size."""
    overrides = [
        f"nodes={settings.nodes}",
        f"messages={settings.events}",
        f"interval_ms={PUBLISHING_S * 1000 / max(1, settings.events)}",
        f"options.topics={settings.topics}",
        f"options.slow={str(settings.slow).lower()}",
        f"options.ordered={str(kind == 'ordered').lower()}",
    ]
    return load_scenario(find_scenario(SCENARIO), overrides)


def run_one(work: tuple[str, int], settings: Settings, checkers: Sequence[Checker] = ()) -> Outcome:
    """One run, in a process of its own."""
    kind, seed = work
    scenario = scenario_of(kind, settings)
    experiment = TopicsExperiment(scenario, seed, checkers, replay_of(kind, seed, settings))
    experiment.simulation.progress = partial(_tell, time.monotonic(), work, scenario.end_s)
    begin_s, failure = time.process_time(), ""
    with quiet_collector():
        try:
            experiment.run()
        except ShoalError as error:
            failure = str(error)
    figures = experiment.figures()
    if not failure:
        try:
            experiment.check_liveness(figures)
        except ShoalError as error:
            failure = str(error)
    return Outcome(
        kind=kind,
        seed=seed,
        issued=figures.issued,
        injected=figures.injected,
        refused=figures.refused,
        unanswered=figures.unanswered,
        due=figures.due,
        delivered=figures.delivered,
        wrong=figures.wrong,
        gaps=figures.gaps,
        told_again=figures.told_again,
        run_to_100_s=figures.run_to_100_s,
        rpcs_per_event=round(figures.rpc.per_event, 1),
        cpu_s=round(time.process_time() - begin_s, 1),
        failure=failure,
    )


def replay_of(kind: str, seed: int, settings: Settings) -> str:
    """The command that repeats one run."""
    options = [
        *("--first", str(seed), "--seeds", "1", "--only", kind, "--nodes", str(settings.nodes)),
        *("--topics", str(settings.topics), "--events", str(settings.events)),
        *(["--slow"] if settings.slow else []),
    ]
    return shlex.join([".venv/bin/python", "campaigns/topics.py", *options])


def outcomes(jobs: list[tuple[str, int]], settings: Settings, processes: int) -> Iterator[Outcome]:
    """One after the other, as they are done."""
    if processes == 1 or len(jobs) == 1:
        yield from map(partial(run_one, settings=settings), jobs)
        return
    with get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(partial(run_one, settings=settings), jobs)


def _tell(begun_s: float, work: tuple[str, int], end_s: float, simulation: Simulation) -> None:
    if sys.stderr.isatty():
        kind, seed = work
        took_s = time.monotonic() - begun_s
        done = simulation.time_s / end_s
        print(f"\r{kind}, seed {seed}: {done:4.0%} in {took_s:.0f} s", end="", file=sys.stderr)


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
    parser.add_argument("--topics", type=int, default=defaults.topics)
    parser.add_argument("--events", type=int, default=defaults.events)
    parser.add_argument("--slow", action="store_true", help="500 ms more, give or take 300")
    parser.add_argument("--only", choices=KINDS, help="one kind of topics")
    parser.add_argument("--json", action="store_true", help="one object a line")
    options = parser.parse_args()
    settings = Settings(options.nodes, options.topics, options.events, options.slow)
    kinds = [options.only] if options.only else list(KINDS)
    seeds = range(options.first, options.first + options.seeds)
    jobs = [(kind, seed) for seed in seeds for kind in kinds]
    print(f"{len(jobs)} runs of {options.nodes} nodes begin", file=sys.stderr)
    bad = 0
    for done, outcome in enumerate(outcomes(jobs, settings, options.jobs), start=1):
        bad += bool(outcome.failure)
        if options.json:
            print(msgspec.json.encode(outcome).decode(), flush=True)
        all_s = outcome.run_to_100_s
        there = "never" if all_s is None else f"{all_s:.1f} s after the last event"
        print(
            f"{done} of {len(jobs)}: {outcome.kind}, seed {outcome.seed}: {outcome.injected} of "
            f"{outcome.issued} events, {outcome.delivered} of {outcome.due} deliveries, all "
            f"{there}, {outcome.wrong} times wrong, {outcome.rpcs_per_event:g} RPCs an event, "
            f"{outcome.cpu_s:.0f} s of CPU",
            file=sys.stderr,
        )
        if outcome.failure:
            replay = replay_of(outcome.kind, outcome.seed, settings)
            print(f"  BAD: {outcome.failure}\n  see it again: {replay}", file=sys.stderr)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
