"""A busy life of an overlay under each topology policy, for any process to live through."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from random import Random

from shoal.protocols.streams.topology.aware_policy import AwarePolicy
from shoal.protocols.streams.topology.policy import TopologyPolicy
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from tests.support.streams import node

PolicyFactory = Callable[[int, Random], TopologyPolicy]

POLICIES: dict[str, PolicyFactory] = {"random": RandomPolicy, "aware": AwarePolicy}
DEGREES = (3, 4, 5, 6)


def history_digest(make: PolicyFactory, seed: int) -> str:
    """A digest of all changes in a busy life of one overlay."""
    rng = Random(seed)
    policy = make(rng.choice(DEGREES), Random(seed))
    digest = hashlib.sha256()
    for number in range(600):
        changes = [policy.join(node(number))]
        members = list(policy.nodes)
        if number % 3 == 2:
            changes.append(policy.leave(rng.choice(members)))
        elif number > 10:
            a = rng.choice(members)
            changes.append(policy.link_failed(a, rng.choice(policy.neighbours(a))))
        if number % 50 == 0:
            changes.append(policy.sweep())
        digest.update(repr(changes).encode())
    digest.update(repr([policy.neighbours(member) for member in policy.nodes]).encode())
    return digest.hexdigest()
