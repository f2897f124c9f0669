"""Nodes of a DHT come and go, and some hide a value: what was stored must still be found.

    .venv/bin/python campaigns/dht.py                            5 seeds of both, on two cores
    .venv/bin/python campaigns/dht.py --seeds 1 --nodes 200      a taste
    .venv/bin/python campaigns/dht.py --only attack --seeds 20   the attack alone
    .venv/bin/python campaigns/dht.py --only attack --nodes 200 --k 8 --seeds 20   with few replicas
    .venv/bin/python campaigns/dht.py --first 7 --seeds 1        seed 7 again
    .venv/bin/python campaigns/dht.py --json                     one object a line, for machines

Churn: 1,000 nodes over the AWS delay table hold 100 values; for 20 minutes, a quarter of the nodes
dies every 10 minutes and as many new ones come, while values are looked up all the time. One node
that stays stores a new value every 5 s, which is then looked up like the others. Whoever looks has
joined: before that a node knows nobody to ask.

Attack: a tenth of the nodes took the best of 256 keys each to be near one value's place. They join
before it is stored, say that they hold it, name nobody but each other, and give it to nobody.

What must hold: 99.9 % of the lookups under churn succeed, in log2 n hops at most; the value of the
attack is missed in 1 % of the lookups at most.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context

import msgspec

from shoal.protocols.dht.config import DhtConfig
from shoal.protocols.dht.key_space import id_of_key
from shoal.protocols.dht.validators import content_key
from shoal_lab.experiments.dht_network import DhtNetwork

SUCCESS_MIN = 0.999
MISSED_MAX = 0.01
CHURN_S = 600.0
ANSWER_S = 90.0  # by then every lookup has ended
HIDDEN = b"the value that somebody would rather not have found"


class Settings(msgspec.Struct, frozen=True):
    """One run."""

    nodes: int = 1000
    minutes: float = 20.0
    churn: float = 0.25
    values: int = 100
    lookups_per_s: float = 1.0
    put_every: int = 5
    """After so many lookups a value is stored."""
    hiding: float = 0.1
    attack_lookups: int = 300
    config: DhtConfig = DhtConfig()


class Outcome(msgspec.Struct, frozen=True):
    """What one run came to."""

    kind: str
    seed: int
    nodes: int
    """All that took part; with churn, more than at any one time."""
    lookups: int
    missed: int
    hops_max: int
    hops_mean: float
    holders_min: int
    """Honest nodes that hold a value at the end: the least of all values."""
    cpu_s: float


def run_churn(seed: int, settings: Settings) -> Outcome:
    """Values are looked up while nodes come and go."""
    begin_s = time.process_time()
    network = DhtNetwork(seed, settings.nodes, settings.config)
    network.join()
    stored = [b"value %d" % number for number in range(settings.values)]
    for value in stored:
        network.put(network.rng.choice(network.honest), content_key(value), value)
    network.simulation.run_for(ANSWER_S)
    network.forget_lookups()
    end_s = network.simulation.time_s + settings.minutes * 60
    network.churn(settings.churn, CHURN_S, end_s)
    asked: list[int] = []
    coming: dict[int, bytes] = {}
    while network.simulation.time_s < end_s:
        if len(asked) % settings.put_every == 0:
            value = b"value %d" % (len(stored) + len(coming))
            coming[network.put(network.honest[0], content_key(value), value)] = value
        stored += [coming.pop(token) for token in list(coming) if network.answered(token)]
        key = content_key(network.rng.choice(stored))
        joined = [node for node in network.running() if network.machine(node).ready]
        asked.append(network.get(network.rng.choice(joined), key))
        network.simulation.run_for(1 / settings.lookups_per_s)
    return _outcome("churn", seed, network, asked, stored, begin_s)


def run_attack(seed: int, settings: Settings) -> Outcome:
    """A value is stored and looked up where an attacker waits for it."""
    begin_s = time.process_time()
    key = content_key(HIDDEN)
    hiding = round(settings.nodes * settings.hiding)
    network = DhtNetwork(
        seed, settings.nodes, settings.config, hiding=hiding, hidden=id_of_key(key)
    )
    network.join()
    network.put(network.rng.choice(network.honest), key, HIDDEN)
    network.simulation.run_for(ANSWER_S)
    network.forget_lookups()
    holders = network.holders(key)
    others = [node for node in network.honest if node not in holders]
    network.rng.shuffle(others)
    asked = []
    for node in others[: settings.attack_lookups]:
        asked.append(network.get(node, key))
        network.simulation.run_for(0.2)
    return _outcome("attack", seed, network, asked, [HIDDEN], begin_s)


def _outcome(
    kind: str,
    seed: int,
    network: DhtNetwork,
    asked: list[int],
    stored: list[bytes],
    begin_s: float,
) -> Outcome:
    """An asker that died before its answer had none to give: it does not count."""
    network.simulation.run_for(ANSWER_S)
    for node in network.running():
        network.machine(node).check_invariants()
    answered = [token for token in asked if network.answered(token)]
    hops = [lookup.hops for lookup in network.forget_lookups()]
    return Outcome(
        kind,
        seed,
        len(network.simulation.nodes),
        len(answered),
        sum(not network.values(token) for token in answered),
        max(hops),
        sum(hops) / len(hops),
        min([len(network.holders(content_key(value))) for value in stored]),
        round(time.process_time() - begin_s, 1),
    )


RUNS: dict[str, Callable[[int, Settings], Outcome]] = {"churn": run_churn, "attack": run_attack}


def verdict(outcomes: list[Outcome], settings: Settings) -> list[str]:
    """What does not hold."""
    wrong = []
    for kind, missed_max in (("churn", 1 - SUCCESS_MIN), ("attack", MISSED_MAX)):
        some = [one for one in outcomes if one.kind == kind]
        lookups, missed = sum(o.lookups for o in some), sum(o.missed for o in some)
        if missed > missed_max * lookups:
            wrong.append(f"{kind}: {missed} of {lookups} lookups missed the value")
    hops_max = math.log2(settings.nodes)
    wrong += [
        f"churn, seed {one.seed}: a lookup took {one.hops_max} hops, more than {hops_max:.1f}"
        for one in outcomes
        if one.kind == "churn" and one.hops_max > hops_max
    ]
    return wrong


def _run(job: tuple[str, int], settings: Settings) -> Outcome:
    kind, seed = job
    return RUNS[kind](seed, settings)


def main() -> None:
    """The command."""
    defaults = Settings()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=defaults.nodes)
    parser.add_argument("--minutes", type=float, default=defaults.minutes, help="simulated")
    parser.add_argument("--k", type=int, default=defaults.config.k, help="replicas of a value")
    parser.add_argument("--hiding", type=float, default=defaults.hiding, help="part that attacks")
    parser.add_argument("--only", choices=sorted(RUNS), help="one of the two")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="one object a line")
    options = parser.parse_args()
    settings = Settings(
        nodes=options.nodes,
        minutes=options.minutes,
        hiding=options.hiding,
        config=DhtConfig(k=options.k),
    )
    kinds = [options.only] if options.only else list(RUNS)
    seeds = range(options.first, options.first + options.seeds)
    jobs = [(kind, seed) for seed in seeds for kind in kinds]
    outcomes: list[Outcome] = []
    print(f"{len(jobs)} runs of {options.nodes} nodes begin", file=sys.stderr)
    with get_context("spawn").Pool(options.jobs) as pool:
        for outcome in pool.imap(partial(_run, settings=settings), jobs):
            outcomes.append(outcome)
            if options.json:
                print(msgspec.json.encode(outcome).decode(), flush=True)
            print(
                f"{len(outcomes)} of {len(jobs)}: {outcome.kind}, seed {outcome.seed}: "
                f"{outcome.missed} of {outcome.lookups} missed, hops {outcome.hops_mean:.2f} "
                f"({outcome.hops_max} at most), {outcome.holders_min} holders, "
                f"{outcome.cpu_s:.0f} s of CPU",
                file=sys.stderr,
            )
    wrong = verdict(outcomes, settings)
    for line in wrong:
        print(line, file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
