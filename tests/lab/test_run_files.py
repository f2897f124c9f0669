"""Runs on disk: whole or not there, and with all that is needed to see them again."""

from __future__ import annotations

import fcntl
import json
import threading
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.base.errors import ConfigError, UsageError
from shoal.kernel.records import RUN_FILE, RUN_FORMAT
from shoal.sim.delays import digest_table
from shoal.sim.simulation import SimulationFailure
from shoal_lab.runs.run_files import (
    OLD_SETTINGS,
    AlreadyThere,
    NotWritten,
    RunInfo,
    RunWriter,
    provenance,
    remove_leftovers,
    run_name,
    write_run,
)
from shoal_lab.runs.run_tables import RUN_TABLES, run_table_schema
from shoal_lab.runs.runner import run_scenario
from shoal_lab.scenarios.experiment_kinds import RunProgress
from shoal_lab.scenarios.scenario import NetworkSettings, Scenario, WorkloadSettings, pin_delays
from tests.lab.test_runner import FailsAt

SMALL = Scenario(
    name="small",
    network=NetworkSettings(nodes=8),
    workload=WorkloadSettings(messages=10, settle_s=15.0, drain_s=3.0),
)
EMPTY = {"nodes": run_table_schema("nodes").empty_table()}


def info(run: str = "a") -> RunInfo:
    return RunInfo(run=run, seed=1, scenario=SMALL, result={}, provenance=provenance())


def write_two(folder: Path) -> None:
    with RunWriter(folder) as writer:
        writer.write(info(), lambda: EMPTY)
        writer.write(info("b"), lambda: EMPTY)


def test_a_run_is_written_with_everything_that_is_said_of_it(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "out") as writer:
        result = run_scenario(SMALL, 5, writer=writer)
    (folder,) = (tmp_path / "out").iterdir()
    assert folder.name == run_name(SMALL, 5)
    said = json.loads((folder / RUN_FILE).read_text())
    assert (said["format"], said["run"], said["seed"]) == (RUN_FORMAT, folder.name, 5)
    assert said["scenario"]["network"]["nodes"] == 8
    assert said["result"]["trace_hash"] == result.trace_hash
    assert said["result"]["replay"] == result.replay
    assert said["provenance"]["packages"]["pyarrow"] == pa.__version__
    assert said["tables"]["deliveries"] == result.figures.delivered == 70
    files = {file.stem: file for file in folder.glob("*.parquet")}
    assert files.keys() == said["tables"].keys() <= set(RUN_TABLES)
    for table, file in files.items():
        opened = pq.ParquetFile(file)
        assert opened.num_row_groups == 1
        assert opened.metadata.num_rows == said["tables"][table]
        assert opened.schema_arrow.equals(run_table_schema(table), check_metadata=False)
        footer = opened.metadata.metadata
        assert json.loads(footer[b"shoal.run"]) == said
        assert footer[b"shoal.run_format"] == str(RUN_FORMAT).encode()


def test_writing_a_run_does_not_change_it(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        assert run_scenario(SMALL, writer=writer).trace_hash == run_scenario(SMALL).trace_hash


def test_a_run_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal_lab.testbed.simulated.safety_checkers", lambda: [FailsAt(1.0)])
    with pytest.raises(SimulationFailure), RunWriter(tmp_path) as writer:
        run_scenario(SMALL, writer=writer)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_there_is_refused_before_it_is_run(tmp_path: Path) -> None:
    (tmp_path / run_name(SMALL, 1)).mkdir()
    with (
        RunWriter(tmp_path) as writer,
        pytest.raises(UsageError, match="--again runs it once more"),
    ):
        run_scenario(SMALL, 1, writer=writer)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("file", "it is a file"),
        ("file/in/it", "Not a directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_a_folder_that_cannot_be_is_refused_before_anything_is_run(
    tmp_path: Path, name: str, reason: str
) -> None:
    (tmp_path / "file").touch()
    told: list[RunProgress] = []
    with (
        RunWriter(tmp_path / name) as writer,
        pytest.raises(UsageError, match=rf"--out .*{name}: .*: {reason}: name a folder"),
    ):
        run_scenario(SMALL, 1, writer=writer, progress=told.append)
    assert told == []
    assert [f.name for f in tmp_path.iterdir()] == ["file"]


def test_until_everything_is_written_there_is_no_run(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def tables() -> dict[str, pa.Table]:
        begun.set()
        assert go_on.wait(10)
        return EMPTY

    with RunWriter(tmp_path) as writer:
        written = writer.write(info(), tables)
        assert begun.wait(10)
        assert [entry.name[:3] for entry in tmp_path.iterdir()] == [".a."]
        go_on.set()
        assert written.result() == tmp_path / "a"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_what_goes_wrong_in_the_thread_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    def tables() -> dict[str, pa.Table]:
        raise OSError("no space")

    with (
        pytest.raises(NotWritten, match=f"{tmp_path}/a could not be written: no space: make room"),
        RunWriter(tmp_path) as writer,
    ):
        writer.write(info(), tables)
    assert list(tmp_path.iterdir()) == []


def test_the_next_run_is_not_begun_after_one_that_could_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(UsageError, match="--again runs it once more"):
        write_two(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_file_that_cannot_be_written_leaves_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("shoal_lab.runs.run_files._write_bytes", fails)
    with pytest.raises(NotWritten, match=f"{tmp_path}/a could not be written: disk full"):
        write_run(tmp_path, info(), lambda: EMPTY)
    assert list(tmp_path.iterdir()) == []


def test_two_that_write_the_same_run_at_once_leave_one(tmp_path: Path) -> None:
    def meanwhile() -> dict[str, pa.Table]:
        write_run(tmp_path, info(), lambda: EMPTY)
        return EMPTY

    with pytest.raises(AlreadyThere, match=r"a is there already: --again"):
        write_run(tmp_path, info(), meanwhile)
    assert [f.name for f in tmp_path.iterdir()] == ["a"]


def test_a_folder_that_is_taken_for_a_leftover_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked: list[str] = []
    lock = fcntl.flock

    def flock(descriptor: int, how: int) -> None:
        if how == fcntl.LOCK_EX and not locked:
            # Somebody who cleans up comes between the making of the folder and its lock.
            locked.append("late")
            remove_leftovers(tmp_path, "a")
            assert list(tmp_path.iterdir()) == []
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    assert write_run(tmp_path, info(), lambda: EMPTY) == tmp_path / "a"
    assert locked
    assert [f.name for f in tmp_path.iterdir()] == ["a"]


def test_a_name_stands_for_settings_and_seed() -> None:
    larger = msgspec.structs.replace(SMALL, network=NetworkSettings(nodes=9))
    real = msgspec.structs.replace(SMALL, on="sockets")
    names = {run_name(SMALL, 1), run_name(SMALL, 2), run_name(larger, 1), run_name(real, 1)}
    assert len(names) == 4
    # What it is about, and which seed it would have had, are no settings of a run.
    assert run_name(msgspec.structs.replace(SMALL, about="x", seed=9), 1) in names
    odd = msgspec.structs.replace(SMALL, name="../../a b.c")
    assert run_name(odd, 1).startswith("a-b-c-1-")
    assert run_name(msgspec.structs.replace(SMALL, name="..."), 1).startswith("run-1-")


def test_a_delay_table_is_part_of_the_name_wherever_it_lies(tmp_path: Path) -> None:
    names = []
    for folder, delay_ms in (("a", 1), ("b", 1), ("b", 2)):
        (tmp_path / folder).mkdir(exist_ok=True)
        table = tmp_path / folder / "mine.tsv"
        table.write_text(f"from\tx\nx\t{delay_ms}\n")
        settings = NetworkSettings(delays=str(table))
        names.append(run_name(pin_delays(Scenario(name="own", network=settings)), 1))
    assert names[0] == names[1] != names[2]


def test_a_run_says_which_table_it_had_and_takes_no_other(tmp_path: Path) -> None:
    table = tmp_path / "mine.tsv"
    table.write_text("from\tx\nx\t1\n")
    own = msgspec.structs.replace(SMALL, network=NetworkSettings(nodes=8, delays=str(table)))
    pinned = pin_delays(own)
    with RunWriter(tmp_path / "out") as writer:
        run_scenario(own, writer=writer)
    (folder,) = (tmp_path / "out").iterdir()
    assert folder.name == run_name(pinned, 1)
    said = json.loads((folder / RUN_FILE).read_text())["scenario"]["network"]
    assert said["delays_digest"] == pinned.network.delays_digest == digest_table(str(table))
    table.write_text("from\tx\nx\t2\n")
    with pytest.raises(ConfigError, match=r"mine\.tsv is another table by now"):
        run_scenario(pinned)


def test_names_from_before_there_were_choices_still_stand() -> None:
    assert run_name(Scenario(name="old"), 1) == "old-1-7efd9d77"
    chosen = [NetworkSettings(policy="aware"), NetworkSettings(policy="near-half")]
    names = {run_name(Scenario(name="old", network=network), 1) for network in chosen}
    assert len(names | {"old-1-7efd9d77"}) == 3


def test_what_older_runs_were_is_the_default() -> None:
    settings = msgspec.to_builtins(Scenario(name="any"))
    flat = settings | {f"network.{name}": value for name, value in settings["network"].items()}
    assert {name: flat[name] for name in OLD_SETTINGS} == OLD_SETTINGS
