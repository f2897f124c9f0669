"""The benchmark of reports fails where Spark is too slow. No JVM here."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from typing import Any

import pytest

from benchmarks import report

SLOW = report.Result(
    rows=20, runs=2, session_s=9.0, first_cpu_s=30.0, spark_cpu_s=5.1, duckdb_cpu_s=1.0, ratio=5.1
)
LARGE = report.Size(rows=20, runs=2, wall_s=9.0, cpu_s=20.0, peak_gib=2.0)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes minutes is over at once."""

    def session(settings: object) -> nullcontext[None]:
        return nullcontext()

    monkeypatch.setattr(report, "generate", lambda *asked: None)
    monkeypatch.setattr(report, "spark_session", session)
    monkeypatch.setattr(report, "measure", lambda *asked: SLOW)
    monkeypatch.setattr(report, "measure_command", lambda *asked: LARGE)


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    """The exit code as Python has it: None for 0, and for 1 what is said on stderr."""
    monkeypatch.setattr(sys, "argv", ["report.py", *words])
    try:
        report.main()
    except SystemExit as end:
        return end.code
    return None


@pytest.mark.usefixtures("measured")
def test_more_than_five_times_duckdb_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--json") == (
        "too slow: Spark takes 5.10 times the CPU-seconds of DuckDB, more than --at-most 5"
    )
    assert json.loads(capsys.readouterr().out)["ratio"] == 5.1, "said all the same"


@pytest.mark.usefixtures("measured")
def test_the_limit_can_be_another(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "--at-most", "5.1") is None
    assert "more than --at-most 2.5" in run(monkeypatch, "--at-most", "2.5")


@pytest.mark.usefixtures("measured")
def test_memory_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "--command") is None
