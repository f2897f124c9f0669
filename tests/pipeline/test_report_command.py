"""`shoal lab report`, without Spark: what is said when something is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

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


def test_without_spark_the_remedy_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_simple(tmp_path, "a")
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    assert ends("lab", "report", str(tmp_path)) == 2
    err = capsys.readouterr().err
    assert "./run lab report" in err
    assert "pip install 'shoal[spark]'" in err
