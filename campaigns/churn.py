"""A third of the nodes comes and goes every minute, and whoever stays must miss nothing.

    .venv/bin/python campaigns/churn.py                        20 seeds of 10 minutes: hours
    .venv/bin/python campaigns/churn.py --seeds 2 --minutes 1  a taste
    .venv/bin/python campaigns/churn.py --first 7 --seeds 1    seed 7 again
    .venv/bin/python campaigns/churn.py --json                 one object a line, for machines

500 nodes over the AWS delay table; 20 of them publish 5 messages of 300 bytes a second. Every
minute 30 % of the nodes leave, half of them with a word and half without, and as many come (back).
With --kill-tracker the stream's tracker dies in the middle of it and is not seen again: the next
one takes over. With --redundant-feeds 0 every node gets each message once, and names of it from
its other neighbours.

What must hold: from the first message of a chain that a node is given, it is given every later one,
once and in order, until it leaves; whoever was there from the beginning is given all; nobody is
told of a gap; whoever comes has its place within five seconds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context
from random import Random

import msgspec

from shoal.base.ids import MessageId, NodeId
from shoal.base.units import S_NS
from shoal.kernel.records import Delivered, GapAbandoned, InstructionHandled, Published
from shoal.protocols.streams.commands import LeaveStream, RedundantFeeds
from shoal.sim.host import SimNode
from shoal.sim.simulation import Simulation
from shoal.sim.trace import Row
from shoal_lab.experiments.streams.simulated_network import STREAMS_SLOT, StreamsNetwork
from shoal_lab.scenarios.scenario import NetworkSettings, Scenario
from shoal_lab.testbed.process_memory import LargePages, quiet_collector

SIZE_BYTES = 300
JOIN_INTERVAL_MS = 20.0
SETTLE_S = 10.0  # after the last node joined, and after the last message
JOIN_S_MAX = 5.0
AWAY_S = 20.0  # a node that left comes back after about this time

Chain = tuple[NodeId, int, str]
WATCHED = {Delivered, GapAbandoned, InstructionHandled, Published}


class Settings(msgspec.Struct, frozen=True):
    """One run."""

    nodes: int = 500
    publishers: int = 20
    rate_per_s: float = 5.0
    minutes: float = 10.0
    churn_per_minute: float = 0.3
    kill_tracker: bool = False
    redundant_feeds: RedundantFeeds = "all"


class Outcome(msgspec.Struct, frozen=True):
    """What came of it."""

    seed: int
    published: int
    delivered: int
    stayed: int
    leaves: int
    joins: int
    lost: int
    disordered: int
    gaps: int
    join_s_max: float
    """The longest that anybody who came waited for a place in the overlay."""
    cpu_s: float

    @property
    def good(self) -> bool:
        return not (self.lost or self.disordered or self.gaps) and self.join_s_max < JOIN_S_MAX


class Ledger:
    """Follows each node along each chain; a few words for each, however long the run is."""

    def __init__(self) -> None:
        self.places: dict[MessageId, tuple[Chain, int]] = {}
        self.lengths: dict[Chain, int] = {}
        self.delivered = self.disordered = self.gaps = 0
        self._next: dict[NodeId, dict[Chain, int]] = {}
        self._first: dict[NodeId, dict[Chain, int]] = {}
        self.coming_ns: dict[NodeId, int] = {}
        self.waits_ns: list[int] = [0]

    def __call__(self, rows: list[Row]) -> None:
        for now_ns, node, record in [row for row in rows if type(row[2]) in WATCHED]:
            if type(record) is Delivered:
                self._deliver(node, record.message)
            elif type(record) is Published:
                id = record.message
                chain = (id.publisher, id.partition, id.chain)
                number = self.lengths.get(chain, 0)
                self.places[id] = (chain, number)
                self.lengths[chain] = number + 1
            elif type(record) is GapAbandoned:
                self.gaps += 1
            elif type(record) is InstructionHandled and node in self.coming_ns:
                self.waits_ns.append(now_ns - self.coming_ns.pop(node))

    def forget(self, node: NodeId) -> None:
        """It left: what it missed from now on is nobody's loss."""
        self._next.pop(node, None)
        self._first.pop(node, None)
        self.coming_ns.pop(node, None)

    def lost(self, node: NodeId, *, from_the_beginning: bool) -> int:
        """Messages that a node should have been given and was not."""
        following, first = self._next.get(node, {}), self._first.get(node, {})
        missing = 0
        for chain, length in self.lengths.items():
            if chain in following:
                missing += length - following[chain]
                missing += first[chain] if from_the_beginning else 0
            elif from_the_beginning:
                missing += length
        return missing

    def _deliver(self, node: NodeId, message: MessageId) -> None:
        self.delivered += 1
        chain, number = self.places[message]
        following = self._next.get(node)
        if following is None:
            following = self._next[node] = {}
        expected = following.get(chain)
        if expected is None:
            self._first.setdefault(node, {})[chain] = number
        elif number != expected:
            self.disordered += 1
        following[chain] = number + 1


class ChurnRun:
    """One network, from the first join to the count."""

    def __init__(self, seed: int, settings: Settings, replay: str) -> None:
        self.settings = settings
        self.seed = seed
        network = NetworkSettings(
            nodes=settings.nodes,
            join_interval_ms=JOIN_INTERVAL_MS,
            trackers=3 if settings.kill_tracker else 1,
            redundant_feeds=settings.redundant_feeds,
        )
        self.network = StreamsNetwork(Scenario(name="churn", network=network), seed, replay=replay)
        self.simulation: Simulation = self.network.simulation
        self.ledger = Ledger()
        self.simulation.trace.to(self.ledger)
        self.leaves = self.joins = 0
        self._rng = Random(f"churn {seed}")
        stayers = max(settings.publishers, settings.nodes * 2 // 5)
        self._stayers, self._movers = self.network.nodes[:stayers], self.network.nodes[stayers:]
        self._begin_s = settings.nodes * JOIN_INTERVAL_MS / 1000 + SETTLE_S
        self.end_s = self._begin_s + 60 * settings.minutes

    def play(self) -> Outcome:
        """The whole run."""
        begin_s = time.process_time()
        self.network.join_all()
        for publisher in self._stayers[: self.settings.publishers]:
            first_s = self._begin_s + self._rng.random() / self.settings.rate_per_s
            self.simulation.at_s(first_s, partial(self._publish, publisher))
        self.simulation.at_s(self._begin_s, self._move)
        if self.settings.kill_tracker:
            halfway_s = self._begin_s + 30 * self.settings.minutes
            self.simulation.at_s(halfway_s, self.network.tracker.crash)
        with quiet_collector():
            self.simulation.run_until_s(self.end_s + 2 * SETTLE_S)
        return Outcome(
            seed=self.seed,
            published=len(self.ledger.places),
            delivered=self.ledger.delivered,
            stayed=len(self._stayers),
            leaves=self.leaves,
            joins=self.joins,
            lost=self._lost(),
            disordered=self.ledger.disordered,
            gaps=self.ledger.gaps,
            join_s_max=max(self._waits_ns()) / S_NS,
            cpu_s=round(time.process_time() - begin_s, 1),
        )

    def _lost(self) -> int:
        lost = sum(self.ledger.lost(n.id, from_the_beginning=True) for n in self._stayers)
        for node in self._movers:
            if node.host is not None and self.network.stream in self.network.machine(node).streams:
                lost += self.ledger.lost(node.id, from_the_beginning=False)
        return lost

    def _publish(self, publisher: SimNode) -> None:
        if self.simulation.time_s < self.end_s:
            self.network.publish(publisher, self._rng.randbytes(SIZE_BYTES))
            again_s = self.simulation.time_s + 1 / self.settings.rate_per_s
            self.simulation.at_s(again_s, partial(self._publish, publisher))

    def _move(self) -> None:
        """Somebody leaves; it comes back later."""
        if self.simulation.time_s >= self.end_s:
            return
        per_s = self.settings.churn_per_minute * self.settings.nodes / 60
        self.simulation.at_s(self.simulation.time_s + self._rng.expovariate(per_s), self._move)
        present = [node for node in self._movers if node.host is not None]
        if not present:
            return
        node = self._rng.choice(present)
        self.leaves += 1
        if self._rng.random() < 0.5:
            if self.network.stream in self.network.machine(node).streams:
                node.command(STREAMS_SLOT, LeaveStream(self.network.stream))
            # What it has to say goes out before its process ends.
            self.simulation.at_s(self.simulation.time_s + 0.5, partial(self._end, node))
        else:
            self._end(node)
        self._forget(node)
        back_s = self.simulation.time_s + 1 + self._rng.expovariate(1 / AWAY_S)
        self.simulation.at_s(back_s, partial(self._return, node))

    def _end(self, node: SimNode) -> None:
        if node.host is not None:
            node.crash()

    def _return(self, node: SimNode) -> None:
        if node.host is None:
            self._forget(node)
            self.joins += 1
            self.ledger.coming_ns[node.id] = self.simulation.scheduler.now_ns
            node.start()

    def _forget(self, node: SimNode) -> None:
        self.simulation.trace.flush()  # what it was given before
        self.ledger.forget(node.id)

    def _waits_ns(self) -> list[int]:
        """Of all who came, also of those who wait still."""
        now_ns = self.simulation.scheduler.now_ns
        waiting = [now_ns - since_ns for since_ns in self.ledger.coming_ns.values()]
        return self.ledger.waits_ns + waiting


def run_one(work: tuple[int, Settings]) -> Outcome:
    """One seed, in a process of its own."""
    seed, settings = work
    run = ChurnRun(seed, settings, _replay(seed, settings))
    shown_s, large_pages = 0.0, LargePages()

    def progress(simulation: Simulation) -> None:
        nonlocal shown_s
        large_pages()
        if sys.stderr.isatty() and time.monotonic() - shown_s > 2:
            shown_s = time.monotonic()
            share = min(1.0, simulation.time_s / (run.end_s + 2 * SETTLE_S))
            print(f"\rseed {seed}: {share:4.0%} of the simulated time", end="", file=sys.stderr)

    run.simulation.progress = progress
    return run.play()


def _replay(seed: int, settings: Settings) -> str:
    options = [f"--nodes {settings.nodes}", f"--publishers {settings.publishers}"]
    options += [f"--minutes {settings.minutes:g}", f"--rate {settings.rate_per_s:g}"]
    options += [f"--churn {settings.churn_per_minute:g}"]
    options += [f"--redundant-feeds {settings.redundant_feeds}"]
    options += ["--kill-tracker"] if settings.kill_tracker else []
    return f".venv/bin/python campaigns/churn.py --first {seed} --seeds 1 {' '.join(options)}"


def outcomes(options: argparse.Namespace, settings: Settings) -> Iterator[Outcome]:
    """Seed after seed, as they are done."""
    work = [(seed, settings) for seed in range(options.first, options.first + options.seeds)]
    if options.jobs == 1 or len(work) == 1:
        yield from map(run_one, work)
        return
    with get_context("spawn").Pool(options.jobs) as pool:
        yield from pool.imap_unordered(run_one, work)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    defaults = Settings()
    parser.add_argument("--seeds", type=int, default=20, help="how many (20)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (1)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once (2)")
    parser.add_argument("--nodes", type=int, default=defaults.nodes)
    parser.add_argument("--publishers", type=int, default=defaults.publishers)
    parser.add_argument("--rate", type=float, default=defaults.rate_per_s, help="messages/s each")
    parser.add_argument("--minutes", type=float, default=defaults.minutes, help="simulated")
    churn = defaults.churn_per_minute
    parser.add_argument("--churn", type=float, default=churn, help="of all nodes, per minute (0.3)")
    parser.add_argument(
        "--redundant-feeds",
        type=lambda text: text if text == "all" else int(text),
        default="all",
        help="feeds of a node besides the fastest, for each publisher: 0, 1, ... (all)",
    )
    parser.add_argument("--kill-tracker", action="store_true", help="halfway, for good")
    parser.add_argument("--json", action="store_true", help="one object a line")
    options = parser.parse_args()
    settings = Settings(
        nodes=options.nodes,
        publishers=options.publishers,
        rate_per_s=options.rate,
        minutes=options.minutes,
        churn_per_minute=options.churn,
        kill_tracker=options.kill_tracker,
        redundant_feeds=options.redundant_feeds,
    )
    bad = 0
    for outcome in outcomes(options, settings):
        bad += not outcome.good
        if options.json:
            print(msgspec.json.encode(outcome).decode(), flush=True)
            continue
        verdict = (
            "nothing lost"
            if outcome.good
            else f"BAD, see it again: {_replay(outcome.seed, settings)}"
        )
        print(
            f"seed {outcome.seed}: {outcome.published} messages, {outcome.delivered} deliveries, "
            f"{outcome.leaves} leaves, {outcome.joins} joins: {outcome.lost} lost, "
            f"{outcome.disordered} out of order, {outcome.gaps} gaps, joins within "
            f"{outcome.join_s_max:.1f} s ({outcome.cpu_s:g} s of CPU): "
            f"{verdict}",
            flush=True,
        )
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
