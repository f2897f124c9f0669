"""From runs of the lab to a page, by the command itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from shoal_spark import session
from tests.cli.test_app import ends

pytestmark = pytest.mark.spark

QUICK = (
    "--set", "workload.messages=64", "--set", "workload.settle_s=15", "--set", "faults=[]",
    "--set", "workload.publisher_count=32", "--set", 'name="streams-propagation"', "--no-check",
)  # fmt: skip


@pytest.fixture
def one_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command uses the session of the tests, since there can be but one."""

    @contextmanager
    def running(settings: session.SessionSettings) -> Iterator[SparkSession]:
        assert settings.master == "local[*]"
        yield spark

    monkeypatch.setattr(session, "spark_session", running)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two repeats with 32 nodes, made by the lab."""
    made = tmp_path_factory.mktemp("lab") / "results"
    for seed in (1, 2):
        command = ["lab", "run", "streams-prediction", "--seed", str(seed), *QUICK]
        assert ends(*command, "--set", "network.nodes=32", "--out", str(made)) == 0
    return made


def figures(folder: Path) -> list[dict[str, dict[str, float]]]:
    files = sorted(folder.glob("*/run.json"))
    return [json.loads(file.read_text())["result"]["figures"] for file in files]


@pytest.mark.usefixtures("one_session")
def test_the_markdown_of_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert ends("lab", "report", str(folder)) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("2 runs at 1 points were read.\n")
    assert f"{folder / 'report.html'} and {folder / 'report.md'} written in" in printed
    markdown = (folder / "report.md").read_text()
    assert re.findall(r"^#+ .*", markdown, re.M) == [
        "# streams-propagation", "## Verdicts", "## Propagation delay",
        "## Relative delay penalty", "## Prediction", "## Hops", "## All points", "## Provenance",
    ]  # fmt: skip
    (row,) = re.findall(r"^\| 32 \| 2 \| 137 \| 120–150 \| .*", markdown, re.M)
    mean, spread, difference, verdict, *_ = (cell.strip() for cell in row.split("|")[5:-1])
    means = sorted(run["delay_ms"]["mean"] for run in figures(folder))
    # Delays are kept to a tenth of a millisecond.
    assert float(mean) == pytest.approx(sum(means) / 2, abs=0.11)
    assert [float(part) for part in spread.split("–")] == pytest.approx(means, abs=0.11)
    assert float(difference.split()[0]) == pytest.approx(100 * (sum(means) / 2 / 137 - 1), abs=0.11)
    assert verdict == ("inside" if 120 <= sum(means) / 2 <= 150 else "outside")
    errors = [abs(run["prediction"]["error_percent"]) for run in figures(folder)]
    told = "Over all 2 overlays of streams-propagation, the MAPE of the tracker's own estimate is"
    assert f"{told} {sum(errors) / 2:.2f} %" in markdown
    assert "| streams-propagation | nodes 32, degree 4 | 1, 2 |" in markdown, "seeds"
    assert "shoal lab run streams-prediction --seed 1" in markdown


@pytest.mark.usefixtures("one_session")
def test_json_and_a_damaged_run(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in folder.glob("streams-*"):
        (tmp_path / "runs" / run.name).mkdir(parents=True)
        for file in run.iterdir():
            (tmp_path / "runs" / run.name / file.name).write_bytes(file.read_bytes())
    damaged = min((tmp_path / "runs").glob("*/deliveries.parquet"))
    damaged.write_bytes(damaged.read_bytes()[:-9])
    page = tmp_path / "pages" / "mine.html"
    capsys.readouterr()
    code = ends("lab", "report", str(tmp_path / "runs"), "--json", "--out", str(page))
    printed = capsys.readouterr()
    assert code == 1
    assert f"left out: {damaged}: corrupt or cut short" in printed.err
    said = json.loads(printed.out)
    assert [problem["file"] for problem in said["problems"]] == [str(damaged)]
    (point,) = said["points"]
    assert [run["seed"] for run in point["runs"]] == [2]
    assert {"mean delay, ms", "relative delay penalty"} <= {
        told["figure"] for told in said["comparisons"]
    }
    assert set(said["comparisons"][0]) == {
        "figure", "point", "against", "published", "expected", "spread", "ours", "tolerance",
        "at_most", "difference", "inside", "reproduced",
    }  # fmt: skip
    assert said["failures"] == []
    assert said["html"] == str(page)
    assert str(damaged) in page.read_text()
    assert page.with_suffix(".md").read_text().count("## Problems") == 1
