"""Folders of runs: what can be read is read, and what cannot is named. No JVM here."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from shoal.base.errors import NotFound, UsageError
from shoal.kernel.records import RUN_FILE, RUN_FORMAT
from shoal_lab.runs.run_frames import Problem, find_runs
from tests.pipeline.frames import delivery, flip_a_bit, message, node, write, write_simple

REMEDY = "remove the folder bad, and run it again"


def only_problem(folder: Path, *, verify: bool = False) -> Problem:
    """Of two runs, the good one is found and the other one named."""
    write_simple(folder, "good")
    runs, problems = find_runs(str(folder), verify=verify)
    assert [run.run for run in runs] == ["good"]
    (problem,) = problems
    assert problem.file in str(problem)
    return problem


def change(run: Path, **fields: object) -> None:
    path = run / RUN_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_run_is_found_with_all_that_is_said_of_it(tmp_path: Path) -> None:
    write_simple(tmp_path, "a", [10, 20, 30])
    (run,), problems = find_runs(str(tmp_path), verify=True)
    assert problems == []
    assert run.info["tables"] == {"deliveries": 3, "messages": 1, "nodes": 4}
    assert run.files["nodes"] == (f"file://{tmp_path}/a/nodes.parquet",)


def test_a_file_that_is_cut_short_is_named(tmp_path: Path) -> None:
    file = write_simple(tmp_path, "bad") / "deliveries.parquet"
    os.truncate(file, file.stat().st_size - 7)
    problem = only_problem(tmp_path)
    assert (problem.run, problem.file) == ("bad", str(file))
    assert "corrupt or cut short" in problem.text
    assert problem.text.endswith(REMEDY)


def test_a_file_that_is_empty_or_no_parquet_is_named(tmp_path: Path) -> None:
    (write_simple(tmp_path, "bad") / "nodes.parquet").write_bytes(b"")
    (write_simple(tmp_path, "worse") / "nodes.parquet").write_bytes(b"PAR1 and something PAR1")
    _, problems = find_runs(str(tmp_path))
    assert [problem.run for problem in problems] == ["bad", "worse"]
    assert all("nodes.parquet: corrupt or cut short" in str(problem) for problem in problems)


def test_a_flipped_bit_is_found_by_whoever_reads_the_pages(tmp_path: Path) -> None:
    file = write_simple(tmp_path, "bad", range(1000)) / "deliveries.parquet"
    flip_a_bit(file, "delay_tenths_ms")
    assert find_runs(str(tmp_path))[1] == [], "the footer does not tell"
    assert only_problem(tmp_path, verify=True).file == str(file)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    file = write_simple(tmp_path, "bad") / "deliveries.parquet"
    table = pq.read_table(file).drop_columns(["hops", "due"])
    pq.write_table(table, file)
    assert only_problem(tmp_path).text == f"no column hops; no column due: {REMEDY}"


def test_a_column_of_another_type_is_named(tmp_path: Path) -> None:
    file = write_simple(tmp_path, "bad") / "messages.parquet"
    table = pq.read_table(file)
    at = table.schema.get_field_index("expected")
    pq.write_table(table.set_column(at, "expected", table["expected"].cast("double")), file)
    assert only_problem(tmp_path).text == f"column expected is double, not int64: {REMEDY}"


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    file = write_simple(tmp_path, "bad") / "messages.parquet"
    file.unlink()
    assert only_problem(tmp_path) == Problem("bad", str(file), f"missing: {REMEDY}")


def test_missing_rows_are_named(tmp_path: Path) -> None:
    file = write_simple(tmp_path, "bad", [1, 2, 3]) / "deliveries.parquet"
    pq.write_table(pq.read_table(file).slice(0, 2), file)
    assert only_problem(tmp_path).text == f"2 rows of deliveries, but the run says 3: {REMEDY}"


def test_an_empty_run_is_named(tmp_path: Path) -> None:
    write(tmp_path, "bad", deliveries=[], messages=[], nodes=[node("bad")])
    problem = only_problem(tmp_path)
    assert (problem.run, "empty run" in problem.text) == ("bad", True)


def test_overlays_without_a_pair_are_an_empty_run_and_no_damage(tmp_path: Path) -> None:
    write(tmp_path, "bad", pairs=[], figures={"overlays": 3, "degree": 4})
    assert only_problem(tmp_path).text == "an empty run: its tables have no rows to report"


def test_a_run_that_delivered_nothing_is_no_empty_run(tmp_path: Path) -> None:
    write(tmp_path, "silent", deliveries=[], messages=[message("silent")], nodes=[node("silent")])
    assert find_runs(str(tmp_path))[1] == []


def test_a_folder_without_a_run_file_is_named(tmp_path: Path) -> None:
    (write_simple(tmp_path, "bad") / RUN_FILE).unlink()
    assert "no run, or not all of one" in only_problem(tmp_path).text


def test_a_run_file_that_says_nonsense_is_named(tmp_path: Path) -> None:
    (write_simple(tmp_path, "bad") / RUN_FILE).write_text('{"format": 1, "run"')
    assert only_problem(tmp_path).file.endswith(RUN_FILE)


def test_a_run_of_a_later_version_is_refused(tmp_path: Path) -> None:
    change(write_simple(tmp_path, "bad"), format=RUN_FORMAT + 1)
    assert "upgrade it" in only_problem(tmp_path).text


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"seed": "one"}, "$.seed"),
        ({"scenario": ["x"]}, "$.scenario"),
        ({"result": {"figures": {"prediction": [1]}}}, "$.result.figures.prediction"),
        ({"result": {"figures": {"prediction": {"error_percent": "5"}}}}, "error_percent"),
        ({"result": {"figures": {"network": {"packets": "9"}}}}, "network"),
        ({"result": {"figures": {"held": {"late_ms_mean": "soon"}}}}, "held.late_ms_mean"),
        ({"result": {"replay": 7}}, "$.result.replay"),
        ({"provenance": {"packages": ["numpy"]}}, "$.provenance.packages"),
        ({"tables": {"deliveries": 2, "messages": 1, "nodes": 3, "pairs": 1}}, "figures"),
    ],
)
def test_a_run_file_that_says_something_of_another_type_is_named(
    tmp_path: Path, fields: dict[str, object], complaint: str
) -> None:
    change(write_simple(tmp_path, "bad"), **fields)
    problem = only_problem(tmp_path)
    assert problem.file.endswith(RUN_FILE)
    assert complaint in problem.text


def test_a_run_file_nested_beyond_reason_is_named(tmp_path: Path) -> None:
    run = write_simple(tmp_path, "bad")
    text = (run / RUN_FILE).read_text().rstrip()
    (run / RUN_FILE).write_text(text[:-1] + ', "more": ' + "[" * 100_000 + "]" * 100_000 + "}")
    assert only_problem(tmp_path).file.endswith(RUN_FILE)


def test_a_copy_of_a_run_is_named_and_does_not_count_twice(tmp_path: Path) -> None:
    shutil.copytree(write_simple(tmp_path, "bad"), tmp_path / "worse")
    write_simple(tmp_path, "good")
    runs, (problem,) = find_runs(str(tmp_path))
    assert [run.run for run in runs] == ["bad", "good"]
    assert str(problem) == f"{tmp_path}/worse: holds run bad, as bad does: remove it"


def test_rows_of_another_run_are_named(tmp_path: Path) -> None:
    other = write_simple(tmp_path / "elsewhere", "other")
    bad = write_simple(tmp_path / "here", "bad") / "deliveries.parquet"
    bad.write_bytes((other / "deliveries.parquet").read_bytes())
    problem = only_problem(tmp_path / "here")
    assert (problem.file, problem.text) == (str(bad), f"rows of run other, not of bad: {REMEDY}")


def test_what_a_stopped_run_left_is_passed_over(tmp_path: Path) -> None:
    os.rename(write_simple(tmp_path, "stopped"), tmp_path / ".stopped.0123")
    write_simple(tmp_path, "good")
    (tmp_path / "notes.txt").write_text("mine")
    runs, problems = find_runs(str(tmp_path))
    assert ([run.run for run in runs], problems) == (["good"], [])


def test_parts_of_a_table_count_together(tmp_path: Path) -> None:
    file = write_simple(tmp_path, "a", [1, 2, 3]) / "deliveries.parquet"
    table = pq.read_table(file)
    pq.write_table(table.slice(0, 1), file.with_name("deliveries-1.parquet"))
    pq.write_table(table.slice(1), file)
    (run,), problems = find_runs(str(tmp_path))
    assert problems == []
    assert [Path(path).name for path in run.files["deliveries"]] == [
        "deliveries-1.parquet", "deliveries.parquet",
    ]  # fmt: skip


def test_a_table_of_the_future_is_passed_over(tmp_path: Path) -> None:
    run = write_simple(tmp_path, "a")
    (run / "bubbles.parquet").write_bytes(b"whatever")
    change(run, tables={"deliveries": 2, "messages": 1, "nodes": 3, "bubbles": 4})
    assert find_runs(str(tmp_path))[1] == []


def test_nothing_to_read_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no runs in .*shoal lab run NAME --out"):
        find_runs(str(tmp_path))
    with pytest.raises(NotFound, match=r"no folder .*nowhere.*shoal lab run NAME --out"):
        find_runs(str(tmp_path / "nowhere"))
    with pytest.raises(NotFound, match=r"no folder file:.*writes runs into a folder, which can be"):
        find_runs(f"file://{tmp_path}/nowhere")
    with pytest.raises(UsageError, match=r"mars://runs cannot be opened: "):
        find_runs("mars://runs")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file is no folder that can be read: "):
        find_runs(str(tmp_path / "file"))


def test_the_rows_that_are_written_are_those_that_are_read(tmp_path: Path) -> None:
    rows = [delivery("a", 7, hops=3, duplicates=2, due=False)]
    run = write(tmp_path, "a", deliveries=rows, messages=[message("a")], nodes=[node("a")])
    assert pq.read_table(run / "deliveries.parquet").to_pylist() == rows
