"""A fifth of the nodes lies about its round trips, and must not get anything out of it.

    .venv/bin/python campaigns/liars.py                          200 overlays: an hour on two cores
    .venv/bin/python campaigns/liars.py --overlays 4 --nodes 100 a taste
    .venv/bin/python campaigns/liars.py --first 7 --overlays 1   number 7 again
    .venv/bin/python campaigns/liars.py --json                   one object a line, for machines

500 nodes over the AWS delay table, 100 of them liars of one kind, in turn: those that say that
everybody is near, those that say it of each other, and those that say it of all but each other.
Each overlay has three minutes to improve; beside it stands a random one with the same liars.

What must hold: honest nodes whose neighbours are all liars are not more frequent than in random
overlays, at the level of 1 %; and messages do not reach liars faster than the honest by more than
3 %, places apart: each node's mean delay is taken relative to that of direct connections.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from functools import partial
from multiprocessing import get_context

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from shoal_lab.experiments.streams.simulated_network import StreamsNetwork
from shoal_lab.scenarios.scenario import Lie, NetworkSettings, Scenario

LIES: tuple[Lie, ...] = ("near", "club", "shy")
JOIN_INTERVAL_MS = 10.0
HOP_MS = 0.1
LEVEL_Z = 2.326  # one in a hundred, on one side
ADVANTAGE_MAX = 0.03


class Settings(msgspec.Struct, frozen=True):
    """Overlays of one campaign."""

    nodes: int = 500
    liars: float = 0.2
    minutes: float = 3.0


class Outcome(msgspec.Struct, frozen=True):
    """What one overlay came to."""

    number: int
    lie: str
    honest: int
    eclipsed: int
    """Honest nodes all of whose neighbours lie,"""
    eclipsed_random: int
    """and the same in a random overlay."""
    rdp: float
    liar_rdp: float
    honest_rdp: float
    cpu_s: float


def run_one(number: int, settings: Settings) -> Outcome:
    """One overlay, and a random one beside it."""
    begin_s = time.process_time()
    lie = LIES[number % len(LIES)]
    aware = _network(number, lie, settings, aware=True)
    honest = [node for node in aware.nodes if node.id not in aware.liars]
    delay_ms, direct_ms = _delays(aware)
    stretch = delay_ms.sum(axis=0) / direct_ms.sum(axis=0)
    lies = np.array([node.id in aware.liars for node in aware.nodes])
    return Outcome(
        number,
        lie,
        len(honest),
        _eclipsed(aware),
        _eclipsed(_network(number, lie, settings, aware=False)),
        float(delay_ms.sum() / direct_ms.sum()),
        float(stretch[lies].mean()),
        float(stretch[~lies].mean()),
        round(time.process_time() - begin_s, 1),
    )


def _network(number: int, lie: Lie, settings: Settings, *, aware: bool) -> StreamsNetwork:
    network = NetworkSettings(
        nodes=settings.nodes,
        policy="aware" if aware else "random",
        liars=settings.liars,
        lie=lie,
        join_interval_ms=JOIN_INTERVAL_MS,
    )
    made = StreamsNetwork(Scenario(name="liars", network=network), number)
    made.join_all()
    made.simulation.run_for(settings.nodes * JOIN_INTERVAL_MS / 1000 + 10)
    if aware:
        made.simulation.run_for(settings.minutes * 60)
    return made


def _eclipsed(network: StreamsNetwork) -> int:
    neighbours = [network.active(node) for node in network.nodes if node.id not in network.liars]
    return sum(all(peer in network.liars for peer in peers) for peers in neighbours)


def _delays(network: StreamsNetwork) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Between all pairs, over the overlay and direct, in milliseconds."""
    nodes, delays = network.nodes, network.simulation.delays
    size = len(nodes)
    direct_ms = np.array(
        [[delays.one_way_ns(a.index, b.index) / 1e6 for b in nodes] for a in nodes]
    )
    np.fill_diagonal(direct_ms, 0.0)
    index = {node.id: at for at, node in enumerate(nodes)}
    links = [(index[a.id], index[b]) for a in nodes for b in network.active(a)]
    one, other = np.array(links).T
    weights = direct_ms[one, other] + HOP_MS
    return dijkstra(csr_array((weights, (one, other)), shape=(size, size))), direct_ms


def verdict(outcomes: list[Outcome]) -> list[str]:
    """What does not hold."""
    wrong = []
    eclipsed = sum(one.eclipsed for one in outcomes)
    at_random = sum(one.eclipsed_random for one in outcomes)
    # Two counts of rare events: their difference has the variance of their sum.
    if eclipsed - at_random > LEVEL_Z * math.sqrt(max(1, eclipsed + at_random)):
        wrong.append(
            f"{eclipsed} honest nodes are among liars only, {at_random} in random overlays"
        )
    for lie in LIES:
        some = [one for one in outcomes if one.lie == lie]
        if not some:
            continue
        advantage = 1 - sum(o.liar_rdp for o in some) / sum(o.honest_rdp for o in some)
        if advantage > ADVANTAGE_MAX:
            wrong.append(f"liars ({lie}) are {advantage:.1%} faster to reach than the honest")
    return wrong


def main() -> None:
    """The command."""
    defaults = Settings()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--overlays", type=int, default=200)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=defaults.nodes)
    parser.add_argument("--liars", type=float, default=defaults.liars, help="part of the nodes")
    parser.add_argument("--minutes", type=float, default=defaults.minutes, help="simulated")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="one object a line")
    options = parser.parse_args()
    settings = Settings(options.nodes, options.liars, options.minutes)
    numbers = range(options.first, options.first + options.overlays)
    outcomes: list[Outcome] = []
    with get_context("spawn").Pool(options.jobs) as pool:
        for outcome in pool.imap(partial(run_one, settings=settings), numbers):
            outcomes.append(outcome)
            if options.json:
                print(msgspec.json.encode(outcome).decode(), flush=True)
            print(
                f"{len(outcomes)} of {len(numbers)}: {sum(o.eclipsed for o in outcomes)} eclipsed, "
                f"{sum(o.eclipsed_random for o in outcomes)} at random, RDP {outcome.rdp:.3f}, "
                f"liars {outcome.liar_rdp:.3f}, honest {outcome.honest_rdp:.3f}",
                file=sys.stderr,
            )
    wrong = verdict(outcomes)
    for line in wrong:
        print(line, file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
