"""The archive for executors. No JVM here."""

from __future__ import annotations

import json
import re
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest

from shoal.base.errors import UsageError
from shoal_spark import executor_archive as module
from shoal_spark.executor_archive import archive_settings, package
from tests.cli.test_app import ends


def test_a_bare_interpreter_imports_what_is_packed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEVEL", 0)  # what is packed is the same, and there the sooner
    out, unpacked = tmp_path / "new" / "shoal.zip", tmp_path / "unpacked"
    assert ends("pipeline", "package", str(out), "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["file"] == str(out)
    assert said["bytes"] == out.stat().st_size
    assert [file.name for file in out.parent.iterdir()] == ["shoal.zip"], "nothing is left behind"
    with zipfile.ZipFile(out) as archive:
        names = archive.namelist()
        archive.extractall(unpacked)
    assert len(names) == said["files"]
    assert "shoal_lab/report/published/streamr-propagation.tsv" in names
    assert "pyspark_shoal/__init__.py" in names, "where Spark looks for the format"
    assert not [name for name in names if name.startswith("pyspark/")]
    assert not [name for name in names if re.search(r"flight|_s3|_cffi\.", name)], "nobody asks"
    venv.create(tmp_path / "bare", with_pip=False)
    code = (
        "from shoal_lab.report.analysis.shortest_paths import path_delays\n"
        "from shoal_lab.scenarios.experiment_kinds import find_kind, kind_names\n"
        "import shoal_lab.runs.run_tables, shoal_lab.runs.spark_executors, pandas\n"
        "assert [find_kind(*name.split('/')) for name in kind_names()]\n"
        "import pyarrow.parquet, zstandard\n"
        "print(path_delays([0, 1], [1, 0], [4000, 6000], [0, 1], [1, 1]).mean_ms)"
    )
    done = subprocess.run(
        [tmp_path / "bare" / "bin" / "python", "-c", code],
        env={"PYTHONPATH": str(unpacked)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.returncode) == ("5.0\n", 0), done.stderr
    compiled = {file.relative_to(unpacked).as_posix() for file in unpacked.rglob("*.pyc")}
    assert compiled == {name for name in names if name.endswith(".pyc")}, "nothing had to be"


def test_an_archive_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"end it in \.zip"):
        package(tmp_path / "shoal.tar")


def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NEEDS", ("msgspec", "no-such-thing"))
    with pytest.raises(UsageError, match=r"no-such-thing is not installed.*shoal\[spark\]"):
        package(tmp_path / "shoal.zip")
    assert list(tmp_path.iterdir()) == []


def test_executors_are_told_where_it_is() -> None:
    settings = archive_settings("there/shoal.zip")
    assert settings["spark.archives"] == "there/shoal.zip#shoal_environment"
    assert settings["spark.executorEnv.PYTHONPATH"] == "shoal_environment"


def test_the_report_names_what_makes_the_archive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "none.zip"
    assert ends("lab", "report", str(tmp_path), "--environment", str(missing)) == 2
    assert f"shoal pipeline package {missing}" in capsys.readouterr().err


def test_the_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("pipeline", "package", "--help") == 0
    assert "Example: shoal pipeline package shoal.zip" in capsys.readouterr().out
