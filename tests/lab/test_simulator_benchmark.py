"""The simulator benchmark runs; what it finds is not for a test to judge."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import simulator


def test_a_tiny_benchmark_has_figures() -> None:
    row = simulator.measure(nodes=8, deliveries=80, bare_events=1000)
    assert row.nodes == 8
    assert min(row.events, row.events_per_cpu_second, row.bare_events_per_cpu_second) > 0
    assert row.ratio > 0


def test_it_prints_one_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulator, "SIZES", (4, 8))
    monkeypatch.setattr(simulator, "DELIVERIES", 40)
    monkeypatch.setattr(simulator, "BARE_EVENTS", 1000)
    monkeypatch.setattr(sys, "argv", ["simulator.py", "--json"])
    simulator.main()
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["nodes"] for row in printed["rows"]] == [4, 8]
    monkeypatch.setattr(sys, "argv", ["simulator.py"])
    simulator.main()
    assert "ratio" in capsys.readouterr().out
