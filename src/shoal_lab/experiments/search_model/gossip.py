"""The measurement, step by step: push-sum with fish, all nodes in step.

Of the fish only the largest kind is followed, which is never eaten: one node has it at first, and
who was not reached by it yet has no result. So a round has three columns for D0, D1 and D2, and one
more for each holder that is tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from shoal.base.errors import InvariantViolated
from shoal_lab.experiments.search_model.circle import Flags, Graph, Numbers

PRECISION = 0.05  # what sizes of bubbles and walks need
MOST = 0.99
STEPS_MAX = 200  # a million nodes of two locations take 70
TOTALS = 3
MASS_ERROR_MAX = 1e-3  # of sums in 32 bits, as they are on the wire

Masses = npt.NDArray[np.float32]


class Step(NamedTuple):
    """What nodes knew after so many beats."""

    step: int
    holder: int
    within: float
    """What part of the nodes had all three sums within 5 %."""


def measure(
    graph: Graph,
    living: Flags,
    holders: Numbers,
    told: Callable[[Step], None] = lambda step: None,
) -> list[Step]:
    """Beat until most nodes know enough, whoever has the largest fish, or STEPS_MAX times."""
    nodes = np.flatnonzero(living)
    degree = graph.degree.astype(np.float64)
    links = csr_array(
        (np.ones(len(graph.peer), np.float32), graph.peer, graph.first),
        shape=(graph.nodes, graph.nodes),
    )
    true = np.array([(degree[nodes] ** power).sum() for power in range(TOTALS)])
    held = np.zeros((graph.nodes, TOTALS + len(holders)), np.float32)
    for power in range(TOTALS):
        held[nodes, power] = degree[nodes] ** power
    held[holders, TOTALS + np.arange(len(holders))] = 1
    share = (1 / (degree + 1)).astype(np.float32)[:, None]
    steps: list[Step] = []
    for number in range(1, STEPS_MAX + 1):
        part = held * share
        held = links @ part
        held += part  # one part stays
        for holder in range(len(holders)):
            steps.append(_judge(number, holder, held[nodes], true))
            told(steps[-1])
        if all(step.within >= MOST for step in steps[-len(holders) :]):
            break
    _check_mass(held, true)
    return steps


def steps_needed(steps: list[Step], holder: int) -> int | None:
    """After how many beats most nodes knew enough, if ever."""
    enough = (s.step for s in steps if s.holder == holder and s.within >= MOST)
    return next(enough, None)


def _judge(number: int, holder: int, held: Masses, true: npt.NDArray[np.float64]) -> Step:
    fish = held[:, TOTALS + holder]
    reached = fish > 0
    found = held[:, :TOTALS] / np.where(reached, fish, 1)[:, None]
    error = np.abs(found / true.astype(np.float32) - 1).max(axis=1)
    error[~reached] = np.inf
    return Step(number, holder, float((error <= PRECISION).mean()))


def _check_mass(held: Masses, true: npt.NDArray[np.float64]) -> None:
    """Nothing is lost and nothing made: all that was put in is somewhere."""
    put = np.append(true, np.ones(held.shape[1] - TOTALS))
    off = np.abs(held.sum(axis=0, dtype=np.float64) / put - 1)
    if (off > MASS_ERROR_MAX).any():
        raise InvariantViolated(f"a measurement came to sums that are {off.max():.2%} off")
