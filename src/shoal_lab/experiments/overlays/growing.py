"""Overlays as the tracker's algorithm makes them, and the run of an experiment that makes many."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Annotated, Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Meta

from shoal.base.errors import InvariantViolated
from shoal.base.ids import NodeId, node_id
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.sim.simulation import SimulationFailure, stable_random
from shoal_lab.runs.run_tables import run_table_schema
from shoal_lab.scenarios.experiment_kinds import (
    OFF,
    PASSED,
    Checks,
    Outcome,
    RunProgress,
    RunRequest,
)
from shoal_lab.scenarios.scenario import Scenario

OVERLAYS_MAX = 1_000_000
OVERLAY_SETTINGS = frozenset({"nodes", "degree"})  # that these experiments go by

Ends = npt.NDArray[np.int64]
"""Of each node, in the order of arrival, the numbers of its neighbours; -1 for a slot left free."""


class OverlayOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[options] of these experiments."""

    overlays: Annotated[int, Meta(ge=1, le=OVERLAYS_MAX)] = 9
    """Made in one run, each from nothing."""


def grow_overlay(nodes: int, degree: int, rng: Random, *, check: bool = True) -> Ends:
    """Let nodes join in the order of their ids; InvariantViolated if the result is not sound."""
    members = [node_id(number.to_bytes(20, "big")) for number in range(nodes)]
    position: dict[NodeId, int] = {member: at for at, member in enumerate(members)}
    policy = RandomPolicy(degree, rng)
    for member in members:
        policy.join(member)
    if check:
        policy.check_invariants()
    ends = np.full((nodes, degree), -1, dtype=np.int64)
    for at, member in enumerate(members):
        linked = [position[end] for end in policy.neighbours(member)]
        ends[at, : len(linked)] = linked
    if check:
        _check_regular(ends)
    return ends


def _check_regular(ends: Ends) -> None:
    nodes, degree = ends.shape
    full = min(degree, nodes - 1)
    free = full * nodes - int((ends >= 0).sum())
    if free != full * nodes % 2:
        raise InvariantViolated(f"{free} free slots in an overlay of degree {full}")


class Survey(Protocol):
    """Looks at overlays one by one, and sums up."""

    def add(self, ends: Ends) -> None:
        """One more overlay; InvariantViolated if it is not sound."""
        ...

    def figures(self) -> msgspec.Struct:
        """What was seen in all of them."""
        ...

    def columns(self) -> Mapping[str, Mapping[str, Any]]:
        """The columns of each table, but for the name of the run."""
        ...


def surveyed(make: Callable[[Scenario], Survey]) -> Callable[[RunRequest], Outcome]:
    """The `run` of a kind whose experiments make overlays and look at them."""
    return partial(_run, make)


def _run(make: Callable[[Scenario], Survey], request: RunRequest) -> Outcome:
    network, check = request.scenario.network, request.check is not False
    overlays = options_of(request.scenario).overlays
    survey = make(request.scenario)
    digest = hashlib.blake2b(digest_size=16)
    begin_s = time.process_time()
    for number in range(overlays):
        rng = stable_random(request.seed, "overlay", number)
        try:
            ends = grow_overlay(network.nodes, network.degree, rng, check=check)
            survey.add(ends)
        except InvariantViolated as error:
            raise SimulationFailure(
                f"seed {request.seed}, overlay {number}: InvariantViolated: {error}\n"
                f"replay: {request.replay}"
            ) from error
        digest.update(ends.tobytes())
        if request.progress is not None:
            joins = (number + 1) * network.nodes
            part = min((number + 1) / overlays, 0.99)
            request.progress(RunProgress(number + 1, overlays, joins, part, "overlays"))
    figures = survey.figures()
    verdict = PASSED if check else OFF
    return Outcome(
        figures=figures,
        trace_hash=digest.hexdigest(),
        events=overlays * network.nodes,
        records=0,
        cpu_seconds=time.process_time() - begin_s,
        simulated_seconds=0.0,
        checks=Checks(verdict, verdict),
        tables=(lambda run: partial(_tables, run, survey)) if request.record else None,
    )


def options_of(scenario: Scenario) -> OverlayOptions:
    """The options of a scenario, also of one that was not read from a file."""
    return scenario.options or OverlayOptions()


def overlay_cost(scenario: Scenario) -> float:
    """In joins."""
    return float(options_of(scenario).overlays * scenario.network.nodes)


def _tables(run: str, survey: Survey) -> dict[str, pa.Table]:
    made = {}
    for name, columns in survey.columns().items():
        schema = run_table_schema(name)
        rows = len(next(iter(columns.values())))
        values = {"run": pa.repeat(run, rows), **columns}
        arrays = [pa.array(values[field.name], field.type) for field in schema]
        made[name] = pa.Table.from_arrays(arrays, schema=schema)
    return made
