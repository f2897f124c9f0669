"""Faults as a scenario writes them."""

from __future__ import annotations

import tomllib
from typing import Any, get_args

import pytest

from shoal.base.errors import ConfigError
from shoal.kernel.records import FaultInjected
from shoal.sim.faults import (
    AnyFault,
    Bandwidth,
    Churn,
    ClockDrift,
    ClockStep,
    Crash,
    Duplication,
    Fault,
    Jitter,
    Loss,
    Partition,
    Reordering,
    ServiceTime,
    parse_fault,
)
from tests.support.tiny_network import TinyNetwork

GOOD: list[tuple[str, Fault]] = [
    ('kind = "bandwidth"\nmbit_s = 10', Bandwidth(mbit_s=10.0)),
    ('kind = "churn"\nper_minute = 0.3\naway_s = 9', Churn(per_minute=0.3, away_s=9.0)),
    ('kind = "clock_drift"\noffset_ms = 50\nppm = 20.5', ClockDrift(offset_ms=50.0, ppm=20.5)),
    ('kind = "clock_step"\nstep_s = -600', ClockStep(step_s=-600.0)),
    ('kind = "crash"\nfraction = 0.1\nend_s = 9', Crash(fraction=0.1, end_s=9.0)),
    ('kind = "duplication"\nprobability = 1', Duplication(probability=1.0)),
    ('kind = "jitter"\nmean_ms = 5', Jitter(mean_ms=5.0)),
    ('kind = "loss"\nprobability = 0.01\nstart_s = 3', Loss(probability=0.01, start_s=3.0)),
    ('kind = "partition"\nfraction = 0.5\nend_s = 4', Partition(fraction=0.5, end_s=4.0)),
    ('kind = "partition"\nregions = ["a"]\nend_s = 4', Partition(regions=("a",), end_s=4.0)),
    ('kind = "reordering"\nprobability = 0.5', Reordering(probability=0.5)),
    ('kind = "service_time"\nper_message_ms = 2', ServiceTime(per_message_ms=2.0)),
]


@pytest.mark.parametrize(("text", "fault"), GOOD)
def test_a_fault_is_read_from_its_table(text: str, fault: Fault) -> None:
    assert parse_fault(tomllib.loads(text)) == fault


def test_every_kind_is_shown_above() -> None:
    assert {type(fault) for _, fault in GOOD} == set(get_args(AnyFault))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("probability = 0.5", "kind = None: no such fault: there are bandwidth, churn, "),
        ('kind = "gremlins"', "kind = 'gremlins': no such fault: there are bandwidth, churn, "),
        ('kind = "los"', "kind = 'los': no such fault: did you mean loss?"),
        ('kind = "loss"', "probability"),
        ('kind = "loss"\nprobability = 1.5', "probability"),
        ('kind = "loss"\nprobability = -0.1', "probability"),
        ('kind = "loss"\nprobability = nan', "probability"),
        ('kind = "loss"\nprobability = "half"', "probability"),
        (
            'kind = "loss"\nprobability = 0.5\nprobabilty = 0.5',
            "probabilty: no such field: did you mean",
        ),
        ('kind = "loss"\nprobability = 0.5\nstart_s = -1', "start_s"),
        (
            'kind = "loss"\nprobability = 0.5\nstart_s = 5\nend_s = 5',
            "end_s must come after start_s",
        ),
        ('kind = "bandwidth"\nmbit_s = 0', "mbit_s"),
        ('kind = "churn"\nper_minute = 0', "per_minute"),
        ('kind = "churn"\nper_minute = 1\naway_s = 0', "away_s"),
        ('kind = "jitter"\nmean_ms = inf', "mean_ms"),
        ('kind = "clock_drift"\nppm = 1e6', "ppm"),
        ('kind = "partition"\nend_s = 4', "either regions or a fraction"),
        ('kind = "partition"\nend_s = 4\nfraction = 0.5\nregions = ["a"]', "either regions or"),
        ('kind = "partition"\nfraction = 0.5', "end_s"),
        ('kind = "partition"\nfraction = 1.0\nend_s = 4', "fraction"),
    ],
)
def test_a_wrong_table_is_refused_by_name(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_fault(tomllib.loads(text))
    assert complaint in str(refused.value)


@pytest.mark.parametrize("table", [None, 3, "loss", [], {"kind": 3}])
def test_what_is_no_table_is_refused(table: Any) -> None:
    with pytest.raises(ConfigError):
        parse_fault(table)


@pytest.mark.parametrize(
    "fault",
    [
        Bandwidth(mbit_s=1, start_s=1, end_s=2),
        Churn(per_minute=1, start_s=1, end_s=2),
        ClockDrift(ppm=1, start_s=1, end_s=2),
        ClockStep(step_s=60, start_s=1, end_s=2),
        Crash(fraction=0.5, start_s=1, end_s=2),
        Duplication(probability=0.5, start_s=1, end_s=2),
        Jitter(mean_ms=1, start_s=1, end_s=2),
        Loss(probability=0.5, start_s=1, end_s=2),
        Partition(fraction=0.5, start_s=1, end_s=2),
        Reordering(probability=0.5, start_s=1, end_s=2),
        ServiceTime(per_message_ms=1, start_s=1, end_s=2),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_every_fault_leaves_a_record_when_it_begins_and_when_it_ends(fault: Fault) -> None:
    net = TinyNetwork()
    fault.install(net.simulation)
    net.run(3)
    injected = [(row[0], row[2].fault) for row in net.rows if isinstance(row[2], FaultInjected)]
    begin_ns = net.simulation.scheduler.now_ns - 2 * 10**9
    assert injected == [
        (begin_ns, fault.__struct_config__.tag),
        (begin_ns + 10**9, fault.__struct_config__.tag),
    ]
