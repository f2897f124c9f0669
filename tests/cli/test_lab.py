"""`shoal lab`, in one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.lab.catalogue import list_scenarios
from tests.cli.test_app import ends

QUICK = ["--set", "network.nodes=6", "--set", "workload.messages=4", "--set", "workload.settle_s=5"]


def test_json_is_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("lab", "run", "streams-smoke", "--seed", "3", "--json", *QUICK) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert printed.out.count("\n") == 1
    assert (result["scenario"], result["seed"], result["nodes"]) == ("streams-smoke", 3, 6)
    assert (result["published"], result["delivered"], result["lost"]) == (4, 20, 0)
    assert result["replay"].startswith("shoal lab run streams-smoke --seed 3 --set network.nodes=6")
    assert printed.err == "", "what is over in two seconds shows no progress"


def test_the_result_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("lab", "run", "streams-smoke", *QUICK) == 0
    out = capsys.readouterr().out
    for part in ("streams-smoke, seed 1", "20 of 20 expected, 0 lost", "connected", "trace_hash"):
        assert part in out


def test_a_run_without_messages_has_a_table_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("lab", "run", "streams-smoke", *QUICK, "--set", "workload.messages=0") == 0
    assert "0 of 0 expected" in capsys.readouterr().out


def test_a_file_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[network]\nnodes = 3\ndelays = 5\n[workload]\nmessages = 2\nsettle_s = 5\n")
    assert ends("lab", "run", str(file), "--json", "--no-check") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["scenario"] == "mine"
    assert result["replay"] == f"shoal lab run {file} --seed 1 --no-check"
    assert result["checks"] == {"safety": "off", "liveness": "off"}


def test_wire_mode_gives_the_same_run(capsys: pytest.CaptureFixture[str]) -> None:
    for wire in ([], ["--wire"]):
        assert ends("lab", "run", "streams-smoke", "--json", *QUICK, *wire) == 0
    plain, wired = map(json.loads, capsys.readouterr().out.splitlines())
    assert plain["trace_hash"] == wired["trace_hash"]


def test_tables_are_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["lab", "run", "streams-smoke", *QUICK, "--out", str(tmp_path / "results")]
    assert ends(*command) == 0
    (run,) = (tmp_path / "results").iterdir()
    assert json.loads((run / "run.json").read_text())["tables"]["deliveries"] == 20
    assert ends(*command) == 2
    assert f"{run} is there already" in capsys.readouterr().err


def test_the_list_names_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("lab", "list") == 0
    out = capsys.readouterr().out
    assert all(file.stem in out for file in list_scenarios())
