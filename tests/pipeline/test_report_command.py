"""`shoal lab report`, without Spark: what is said when something is missing."""

from __future__ import annotations

import json
import logging
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal_lab.commands import lab
from shoal_lab.commands.lab import Watch
from shoal_lab.report.analysis.collect import Stage
from shoal_lab.report.analysis.report_data import Collected
from shoal_lab.report.blocks import Failure, Report
from tests.cli.test_app import ends
from tests.pipeline.frames import write, write_simple


def test_help_has_an_example_and_needs_no_spark(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("lab", "report", "--help") == 0
    out = capsys.readouterr().out
    assert "Example: shoal lab report results" in out
    assert "exit code is 1" in " ".join(out.split())


def test_an_empty_folder_and_none_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends("lab", "report", str(tmp_path)) == 2
    assert "no runs in" in capsys.readouterr().err
    assert ends("lab", "report", str(tmp_path / "none")) == 2
    assert "shoal lab run NAME --out" in capsys.readouterr().err


def test_nothing_that_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "bad", deliveries=[], messages=[], nodes=[])
    assert ends("lab", "report", str(tmp_path)) == 2
    assert "bad: an empty run" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def test_a_page_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("lab", "report", "results", "--out", "page.md") == 2
    assert "end it in .html" in capsys.readouterr().err
    assert ends("lab", "report", "results", "--out", str(tmp_path)) == 2
    assert "is a folder" in capsys.readouterr().err
    assert ends("lab", "report", "results", "--out", "hdfs://host/page.html") == 2
    assert "hdfs://host/page.html is a URI, and nothing is written to" in capsys.readouterr().err


def test_a_page_has_no_folder_among_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next report would take that for a run."""
    write_simple(tmp_path, "good")
    assert ends("lab", "report", str(tmp_path), "--out", str(tmp_path / "page/index.html")) == 2
    assert "are runs: write to" in capsys.readouterr().err
    assert not (tmp_path / "page").exists()


@pytest.mark.parametrize("page", ["file/page.html", "taken.html"])
def test_a_page_that_cannot_be_written_is_told_before_spark_starts(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    page: str,
) -> None:
    write_simple(tmp_path / "runs", "a")
    (tmp_path / "file").touch()
    (tmp_path / "taken.md").mkdir()
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    assert ends("lab", "report", str(tmp_path / "runs"), "--out", str(tmp_path / page)) == 2
    err = capsys.readouterr().err
    assert "cannot be written: " in err
    assert "Spark is not installed" not in err
    assert not (tmp_path / "taken.html").exists(), "what was tried is gone"


@pytest.mark.parametrize("told", [True, False])
def test_ctrl_c_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    told: bool,
) -> None:
    def make(*asked: Any) -> None:
        with asked[-1].while_spark_starts():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # it has a handler of its own
            logging.error("as its handler does")
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            logging.exception("as py4j does")
            if told:
                raise
            raise OSError("the JVM does not answer") from None

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(lab, "_make", make)
    assert ends("lab", "report", str(tmp_path)) == 130
    assert capsys.readouterr().err.splitlines()[-1:] == ["shoal: stopped"]
    assert caplog.records == []
    assert signal.getsignal(signal.SIGINT) is before
    assert logging.root.isEnabledFor(logging.ERROR)


class Tracked:
    """A session of which only its tasks are asked: so many of so many are done."""

    def __init__(self, *tasks: tuple[int, int]) -> None:
        self.tasks = tasks
        self.sparkContext = self

    def statusTracker(self) -> Tracked:  # noqa: N802 - Spark's name
        return self

    def getActiveStageIds(self) -> list[int]:  # noqa: N802
        return list(range(len(self.tasks)))

    def getStageInfo(self, number: int) -> SimpleNamespace | None:  # noqa: N802
        done, of = self.tasks[number]
        return SimpleNamespace(numCompletedTasks=done, numTasks=of)


def test_progress_is_that_of_the_stages_and_of_sparks_tasks_in_them() -> None:
    watch = Watch()
    assert watch.fraction == 0.0
    watch.tell(Stage("counting", 0.2, 0.8))
    assert (watch.said, watch.fraction) == ("counting", 0.2)
    tracked: Any = Tracked((1, 2), (2, 10))
    watch.watch(tracked)
    assert watch.fraction == pytest.approx(0.2 + 0.6 * 3 / 12)
    tracked.tasks = ((0, 4),)
    assert watch.fraction == pytest.approx(0.35), "never backwards"
    tracked.tasks = ()
    watch.tell(Stage("next", 0.8, 0.9))
    assert watch.fraction == 0.8
    watch.tell(Stage("a stage that nobody planned"))
    assert watch.fraction == 0.8


def test_without_spark_the_remedy_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_simple(tmp_path, "a")
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    assert ends("lab", "report", str(tmp_path)) == 2
    err = capsys.readouterr().err
    assert "./run lab report" in err
    assert "pip install 'shoal[spark]'" in err


@pytest.mark.parametrize(("failures", "code"), [((), 0), ((Failure("odd", "X: y"),), 1)])
def test_a_section_that_could_not_be_made_is_told(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    failures: tuple[Failure, ...],
    code: int,
) -> None:
    def make(*asked: object) -> tuple[Collected, Report]:
        nothing = Collected(folder="", points=(), provenance=(), replays=(), problems=())
        made = Report(title="", summary=("x",), sections=(), comparisons=(), failures=failures)
        return nothing, made

    monkeypatch.setattr(lab, "_make", make)
    assert ends("lab", "report", str(tmp_path), "--json") == code
    printed = capsys.readouterr()
    assert ("shoal: left out: section odd: X: y" in printed.err) == bool(failures)
    assert [told["section"] for told in json.loads(printed.out)["failures"]] == ["odd"] * code
