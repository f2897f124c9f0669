"""`shoal lab`, in one process."""

from __future__ import annotations

import errno
import json
import shlex
from pathlib import Path

import pytest

from shoal_lab.scenarios.scenario import list_scenarios
from tests.cli.test_app import ends, is_refused

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


def test_the_same_over_sockets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = [*QUICK, "--set", "delays=2", "--set", "settle_s=1", "--set", "drain_s=0.3"]
    command = ["lab", "run", "streams-smoke", "--json", "--out", str(tmp_path), *quick]
    for on in (["--on", "sockets"], ["--on", "simulator"], ["--on", "sockets"]):
        assert ends(*command, *on) == 0
    real, simulated, again = map(json.loads, capsys.readouterr().out.splitlines())
    assert (real["on"], simulated["on"]) == ("sockets", "simulator")
    assert again == {**real, "skipped": True}, "it was there"
    assert real["delivered"] == simulated["delivered"] == 20
    assert real["simulated_seconds"] > 1
    assert "--set on=sockets" in real["replay"]
    assert len(list(tmp_path.iterdir())) == 2


def test_sockets_have_no_faults_and_no_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("lab", "run", "streams-faults", "--on", "sockets") == 2
    complaint = "network.wire = True, faults = 12 tables: streams/delivery over sockets takes no"
    assert complaint in capsys.readouterr().err
    assert ends("lab", "run", "streams-smoke", "--on", "sockets", "--master", "local[2]") == 2
    assert "--master is for simulations" in capsys.readouterr().err


def test_real_kernels_are_for_no_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("lab", "run", "streams-loss", "--master", "local[2]") == 2
    said = capsys.readouterr().err
    assert "streams-loss has runs in real time, which need this machine: leave --master out" in said
    assert "Spark" not in said, "it is refused before anything is started"


def test_tables_are_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["lab", "run", "streams-smoke", *QUICK, "--out", str(tmp_path / "results")]
    assert ends(*command) == 0
    (run,) = (tmp_path / "results").iterdir()
    assert json.loads((run / "run.json").read_text())["tables"]["deliveries"] == 20
    first = capsys.readouterr().out
    wrote = (run / "run.json").stat().st_mtime_ns
    assert ends(*command) == 0
    printed = capsys.readouterr()
    assert f"{run} is there already: --again" in printed.err
    assert printed.out == first, "what is there is shown as it was"
    assert (run / "run.json").stat().st_mtime_ns == wrote
    assert ends(*command, "--again") == 0
    assert [*(tmp_path / "results").iterdir()] == [run]
    assert (run / "run.json").stat().st_mtime_ns > wrote


@pytest.mark.parametrize("nodes", ["6", "[3,6]"])
def test_a_folder_that_cannot_be_is_told_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], nodes: str
) -> None:
    (tmp_path / "file").touch()
    out = str(tmp_path / "file")
    command = ["lab", "run", "streams-smoke", *QUICK, "--set", f"nodes={nodes}", "--jobs", "1"]
    assert ends(*command, "--out", out) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"shoal: --out {out}: no run can be written there: it is a file")


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["--out", "hdfs://host/runs"], "--out hdfs://host/runs is a URI, and nothing is written"),
        (["--out", "file:///tmp/runs"], "nothing is written to those: write /tmp/runs"),
        (["--environment", "shoal.zip"], "is for executors: name their --master"),
        (["--seed", "3", "--set", "seed=4"], "--seed 3 and --set seed=4: leave one of them out"),
    ],
)
def test_what_would_be_passed_over_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    given: list[str],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    is_refused(capsys, ["lab", "run", "streams-smoke", *QUICK, *given], complaint)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_is_told_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shoal_lab.runs.run_files._write_bytes", fails)
    assert ends("lab", "run", "streams-smoke", *QUICK, "--out", str(tmp_path)) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"shoal: {tmp_path}/streams-smoke-1-")
    assert "could not be written: [Errno 28] No space left on device: make room" in said
    assert list(tmp_path.iterdir()) == []


def test_one_run_is_told_and_cleaned_up_after_as_one_of_many(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["lab", "run", "streams-smoke", *QUICK, "--json", "--out", str(tmp_path)]
    assert ends(*command, "--set", "nodes=[6]") == 0
    alone = json.loads(capsys.readouterr().out)
    (folder,) = tmp_path.iterdir()
    assert (alone["run"], alone["skipped"]) == (folder.name, False)
    assert alone["point"] == {"network.nodes": 6}
    (tmp_path / f".{folder.name}.0123abcd").mkdir()  # as an attempt that was killed leaves it
    assert ends(*command, "--again") == 0
    assert [*tmp_path.iterdir()] == [folder]
    capsys.readouterr()
    assert ends(*command, "--set", "nodes=[3,6]") == 0
    of_many = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (of_many["run"], of_many["skipped"]) == (folder.name, True)
    assert of_many.keys() == alone.keys()


def test_a_check_that_is_asked_for_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["lab", "run", "streams-smoke", *QUICK, "--json", "--out", str(tmp_path)]
    for check in ("--no-check", "--check", "--check"):
        assert ends(*command, check) == 0
    printed = capsys.readouterr()
    runs = [json.loads(line) for line in printed.out.splitlines()]
    assert [run["checks"]["safety"] for run in runs] == ["off", "passed", "passed"]
    assert [run["skipped"] for run in runs] == [False, False, True]
    assert "was not checked: it is run again" in printed.err


def test_a_sweep_is_one_line_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["lab", "run", "streams-smoke", *QUICK, "--set", "nodes=[3,6]", "--jobs", "2"]
    assert ends(*command, "--json", "--out", str(tmp_path)) == 0
    *runs, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert sorted(run["nodes"] for run in runs) == [3, 6]
    assert {run["run"] for run in runs} == {folder.name for folder in tmp_path.iterdir()}
    assert (summary["runs"], summary["ran"], summary["skipped"], summary["failed"]) == (2, 2, 0, 0)
    assert ends(*command, "--out", str(tmp_path)) == 0
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("seed 1, nodes 3: 8 of 8 deliveries, mean ")
    assert second.startswith("seed 1, nodes 6: 20 of 20 deliveries, mean ")
    assert first.endswith("(was there)")
    assert last.startswith("streams-smoke: 2 runs in ")
    assert last.endswith(" s, 2 were there already")


def test_the_replay_of_a_swept_run_is_that_run(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["lab", "run", "streams-smoke", *QUICK, "--set", "repeats=2", "--json"]
    assert ends(*command, "--set", "degree=[3,4]") == 0
    *runs, _ = map(json.loads, capsys.readouterr().out.splitlines())
    assert len({run["trace_hash"] for run in runs}) == 4
    for run in runs:
        assert ends(*shlex.split(run["replay"])[1:], "--json") == 0
        assert json.loads(capsys.readouterr().out)["trace_hash"] == run["trace_hash"]


def test_a_failed_check_in_a_sweep_is_told_at_the_end(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # Without time to drain, messages are still under way at the end: a failure of liveness.
    file = tmp_path / "mine.toml"
    file.write_text(
        "[network]\nnodes = 8\n[workload]\nmessages = 40\nsettle_s = 5\ndrain_s = 0\n"
        "interval_ms = 1\n"
    )
    command = ["lab", "run", str(file), "--set", "drain_s=[0,5]", "--json"]
    assert ends(*command) == 1
    printed = capsys.readouterr()
    *runs, summary = map(json.loads, printed.out.splitlines())
    assert (summary["ran"], summary["failed"]) == (1, 1)
    (failed,) = [run for run in runs if "failure" in run]
    assert failed["point"] == {"workload.drain_s": 0}
    assert "shoal: 1 of 2 runs failed:" in printed.err.splitlines()
    assert printed.err.splitlines()[-1] == f"replay: {failed['replay']}"


def test_the_list_names_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("lab", "list") == 0
    out = capsys.readouterr().out
    assert all(file.stem in out for file in list_scenarios())
