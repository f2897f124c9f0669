"""The topology policy that a scenario names, wherever it is run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from random import Random

import numpy as np
import numpy.typing as npt

from shoal.base.ids import NodeId
from shoal.lab.overlays.near_half import NearHalfPolicy
from shoal.lab.scenario import NetworkSettings
from shoal.protocols.streams.random_policy import RandomPolicy
from shoal.protocols.streams.topology import TopologyPolicy
from shoal.sim.delays import DelayModel, table_of


def make_policy(
    settings: NetworkSettings, rng: Random, delays: DelayModel, index: Mapping[NodeId, int]
) -> TopologyPolicy:
    """`delays` and the numbers of nodes in it are for what no tracker knows."""
    match settings.policy:
        case "random":
            return RandomPolicy(settings.degree, rng)
        case "near-half":
            return NearHalfPolicy(settings.degree, rng, partial(round_trips, delays, index))
        case "aware":
            # It needs much of SciPy, which takes longer to load than most runs take.
            from shoal.protocols.streams.aware_policy import AwarePolicy

            return AwarePolicy(settings.degree, rng)


def round_trips(
    delays: DelayModel, index: Mapping[NodeId, int], nodes: list[NodeId]
) -> npt.NDArray[np.int64]:
    """Between all of these nodes, in nanoseconds."""
    numbers = [index[node] for node in nodes]
    table = table_of(delays, numbers)
    place = {name: at for at, name in enumerate(table.names)}
    at = [place[delays.region(number)] for number in numbers]
    one_way_ns = np.array(table.delays_ns, np.int64)[np.ix_(at, at)]
    trips_ns: npt.NDArray[np.int64] = one_way_ns + one_way_ns.T
    return trips_ns
