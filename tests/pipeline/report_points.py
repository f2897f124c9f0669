"""Aggregates as they are collected, for reports that need no run."""

from __future__ import annotations

from typing import Any

from shoal_lab.report.analysis.report_data import (  # fmt: skip
    Collected,
    DelayCurve,
    PairMatrix,
    Point,
    Provenance,
    RunFigures,
)
from shoal_lab.report.blocks import Comparison, Report, Table
from shoal_lab.runs.run_frames import Problem

AS_PUBLISHED = {
    "protocol": "streams", "experiment": "delivery", "on": "simulator", "faults": [],
    "network.degree": 4, "network.delays": "aws", "network.policy": "random",
    "network.redundant_feeds": "all", "network.liars": 0.0, "workload.messages": 100,
    "workload.messages_per_node": 2, "workload.publishers": "in-turn",
    "workload.publisher_count": None,
}  # fmt: skip
CURVE = DelayCurve(
    delivered=10, mean_ms=1, p50_ms=200.0, p95_ms=400.0, p99_ms=450.0, cdf=((1.0, 0.5), (9.0, 1.0))
)


def point(nodes: int, *means_ms: float, scenario: str = "streams-propagation") -> Point:
    runs = tuple(
        RunFigures(
            run=f"r{seed}", seed=seed, messages=1, mean_ms=mean_ms, rdp=mean_ms / 68.64,
            unicast_ms=68.64, coverage=1.0, duplicates_per_message=2.01, hops_mean=5.5, hops_max=9,
            tracker_ms=mean_ms, tracker_error_percent=-0.5, publisher_mape_percent=1.0,
            shortest_ms=mean_ms - 1, shortest_error_percent=-100 / mean_ms,
        )
        for seed, mean_ms in enumerate(means_ms, 1)
    )  # fmt: skip
    return Point(
        scenario=scenario, about="", label=f"nodes {nodes}", runs=runs, delays=CURVE,
        settings={"network.nodes": nodes, **AS_PUBLISHED},
    )  # fmt: skip


def overlays(nodes: int = 1000, *, overlays: int = 1000, **more: Any) -> Point:
    """A point that counted pairs, as chance has it."""
    expected = min(1.0, 4 / (nodes - 1))
    told = {
        "nodes": nodes, "degree": 4, "overlays": overlays, "pairs": nodes * (nodes - 1) // 2,
        "mean": expected, "deviation": (expected * (1 - expected) / overlays) ** 0.5,
        "least": 0.0, "most": 0.02, "block_p_value": 0.4, "cells": ((0.1, 0.2), (0.2, 0.1)),
    }  # fmt: skip
    return Point(
        scenario="streams-randomness", about="", label=f"nodes {nodes}", runs=(),
        settings={"network.nodes": nodes, "network.degree": 4},
        matrix=PairMatrix(**{**told, **more}),
    )  # fmt: skip


def told_of(report: Report, figure: str) -> list[Comparison]:
    return [told for told in report.comparisons if told.figure == figure]


def table_of(report: Report, title: str) -> Table:
    """The first of a section."""
    (section,) = [section for section in report.sections if section.title == title]
    return next(block for block in section.blocks if isinstance(block, Table))


def collected(*points: Point, problems: tuple[Problem, ...] = ()) -> Collected:
    made = Provenance(
        commit="abc+", shoal="1", python="3.13", machine="Linux", packages={"numpy": "2"}, runs=3
    )
    return Collected(
        folder="results",
        points=points,
        provenance=(made,),
        replays=(("r1", "shoal lab run x --seed 1"),),
        problems=problems,
    )
