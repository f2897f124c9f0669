"""A run depends on its seed alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.sim.faults import (
    Bandwidth,
    ClockDrift,
    Duplication,
    Fault,
    Jitter,
    Loss,
    Reordering,
    ServiceTime,
)
from shoal.sim.simulation import stable_random, stable_seed
from tests.support.stream_network import trace_hash

ROOT = Path(__file__).parents[2]

FAULTS: list[Fault] = [
    Jitter(mean_ms=3),
    Loss(probability=0.01),
    Duplication(probability=0.01),
    Reordering(probability=0.01),
    Bandwidth(mbit_s=50),
    ServiceTime(per_message_ms=0.1),
    ClockDrift(offset_ms=20, ppm=50),
]


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    assert trace_hash(7) == trace_hash(7)
    assert trace_hash(7) != trace_hash(8)


def test_the_same_seed_gives_the_same_trace_under_every_fault_at_once() -> None:
    first, again = (trace_hash(7, faults=FAULTS) for _ in range(2))
    assert first == again
    assert first != trace_hash(7)


@pytest.mark.parametrize("faults", [[], FAULTS], ids=["no faults", "all faults"])
def test_messages_that_go_through_the_codec_make_the_same_trace(faults: list[Fault]) -> None:
    assert trace_hash(7, wire=True, faults=faults) == trace_hash(7, faults=faults)


def test_pythons_hash_seed_does_not_matter() -> None:
    hashes = [
        subprocess.run(
            [sys.executable, "-m", "tests.support.stream_network", "7"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    ]
    assert hashes == [trace_hash(7)] * 2


def test_generators_depend_on_their_names_alone() -> None:
    assert stable_seed(1, "a") == stable_seed(1, "a")
    seeds = {
        stable_seed(1),
        stable_seed(2),
        stable_seed(1, "a"),
        stable_seed(1, "b"),
        stable_seed(1, "a", "b"),
        stable_seed(1, "ab"),
        stable_seed(1, 2, 3),
        stable_seed(12, 3),
    }
    assert len(seeds) == 8
    assert stable_random(1, "a").random() == stable_random(1, "a").random()
