"""A third of the nodes dies at once, or a whole region does, in an overlay that knows delays.

    .venv/bin/python campaigns/crashes.py                              512 nodes: 5 minutes
    .venv/bin/python campaigns/crashes.py --nodes 128 --policy random  a taste, and the other policy
    .venv/bin/python campaigns/crashes.py --only eu-west-1             one of them again
    .venv/bin/python campaigns/crashes.py --json                       one object a line

Neighbours of the aware policy are near each other, so that a region that is lost takes nearly all
of its links along. Each region of the AWS table in turn, and 30 % of all nodes three times, die
without a word after three minutes, while 20 of the others publish 5 messages a second.

What must hold: within 10 s all who are left are connected, whoever stayed is given every message,
once and in order, and nobody is told of a gap.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from multiprocessing import get_context
from random import Random
from typing import Literal

import msgspec

from campaigns.churn import Ledger
from shoal.sim.delays import load_table
from shoal.sim.host import SimNode
from shoal_lab.experiments.streams.simulated_network import StreamsNetwork
from shoal_lab.scenarios.scenario import NetworkSettings, Scenario
from shoal_lab.testbed.process_memory import quiet_collector

SIZE_BYTES = 300
JOIN_INTERVAL_MS = 10.0
HEAL_S = 10.0
BEFORE_S, AFTER_S, QUIET_S = 5.0, 20.0, 30.0
AT_RANDOM = ("random 1", "random 2", "random 3")
DIE_SHARE = 0.3


class Settings(msgspec.Struct, frozen=True):
    """One campaign."""

    nodes: int = 512
    publishers: int = 20
    rate_per_s: float = 5.0
    minutes: float = 3.0
    policy: Literal["random", "aware"] = "aware"
    seed: int = 1


class Outcome(msgspec.Struct, frozen=True):
    """What came of one of them."""

    died: str
    count: int
    connected_s: float | None
    """How long after the crash all who were left were connected, to the second; None: not yet."""
    lost: int
    disordered: int
    gaps: int
    cpu_s: float

    @property
    def good(self) -> bool:
        """Whether all holds that must."""
        soon = self.connected_s is not None and self.connected_s <= HEAL_S
        return soon and not (self.lost or self.disordered or self.gaps)


def kinds() -> list[str]:
    """What may die."""
    return [*load_table("aws").names, *AT_RANDOM]


def run_one(died: str, settings: Settings) -> Outcome:
    """One network, until all is quiet after the crash."""
    begin_s = time.process_time()
    rng = Random(f"{settings.seed} {died}")
    network = StreamsNetwork(
        Scenario(
            name="crashes",
            network=NetworkSettings(
                nodes=settings.nodes, policy=settings.policy, join_interval_ms=JOIN_INTERVAL_MS
            ),
        ),
        settings.seed,
    )
    simulation, ledger = network.simulation, Ledger()
    victims = _victims(network, died, rng)
    stay = [node for node in network.nodes if node not in victims]
    with quiet_collector():
        network.join_all()
        simulation.run_for(settings.nodes * JOIN_INTERVAL_MS / 1000 + 60 * settings.minutes)
        simulation.trace.to(ledger)
        _publish(network, rng.sample(stay, settings.publishers), settings.rate_per_s, rng)
        simulation.run_for(BEFORE_S)
        for node in victims:
            node.crash()
        connected_s = _until_connected(network)
        simulation.run_for(AFTER_S - (connected_s or HEAL_S) + QUIET_S)
    simulation.trace.flush()
    return Outcome(
        died,
        len(victims),
        connected_s,
        sum(ledger.lost(node.id, from_the_beginning=True) for node in stay),
        ledger.disordered,
        ledger.gaps,
        round(time.process_time() - begin_s, 1),
    )


def _victims(network: StreamsNetwork, died: str, rng: Random) -> list[SimNode]:
    if died in AT_RANDOM:
        return rng.sample(network.nodes, round(DIE_SHARE * len(network.nodes)))
    return [node for node in network.nodes if node.region == died]


def _publish(
    network: StreamsNetwork, publishers: list[SimNode], rate_per_s: float, rng: Random
) -> None:
    begin_s = network.simulation.time_s
    for number in range(round((BEFORE_S + AFTER_S) * rate_per_s * len(publishers))):
        publisher = publishers[number % len(publishers)]
        when_s = begin_s + number / (rate_per_s * len(publishers))
        publish = partial(network.publish, publisher, rng.randbytes(SIZE_BYTES))
        network.simulation.at_s(when_s, publish)


def _until_connected(network: StreamsNetwork) -> float | None:
    """Data may already get everywhere; if not, time passes until it does."""
    for waited_s in range(round(HEAL_S) + 1):
        if network.is_connected():
            return float(waited_s)
        network.simulation.run_for(1)
    return None


def main() -> None:
    """The command."""
    defaults = Settings()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=defaults.nodes)
    parser.add_argument("--minutes", type=float, default=defaults.minutes, help="simulated, before")
    parser.add_argument("--policy", choices=("random", "aware"), default=defaults.policy)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--only", choices=kinds(), help="a region, or one of the random crashes")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="one object a line")
    options = parser.parse_args()
    settings = Settings(
        nodes=options.nodes, minutes=options.minutes, policy=options.policy, seed=options.seed
    )
    all_good = True
    todo = [options.only] if options.only else kinds()
    with get_context("spawn").Pool(options.jobs) as pool:
        for outcome in pool.imap(partial(run_one, settings=settings), todo):
            all_good &= outcome.good
            if options.json:
                print(msgspec.json.encode(outcome).decode(), flush=True)
            else:
                print(
                    f"{outcome.died}: {outcome.count} died, connected after "
                    f"{outcome.connected_s} s, {outcome.lost} lost, {outcome.disordered} out of "
                    f"order, {outcome.gaps} gaps{'' if outcome.good else '   NOT GOOD'}",
                    flush=True,
                )
    sys.exit(0 if all_good else 1)


if __name__ == "__main__":
    main()
