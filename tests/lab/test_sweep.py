"""Sweeps: what is there is not done again."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from shoal_lab.runs.places import RunDone, RunTask, ThisProcess, Told
from shoal_lab.runs.plan import Plan, load_plan
from shoal_lab.runs.runner import read_result
from shoal_lab.runs.sweep import SweepProgress, run_plan

SCENARIO = """
repeats = 4
[network]
nodes = [6, 16]
join_interval_ms = 1
[workload]
messages_per_node = 3
settle_s = 5
drain_s = 3
"""


class Watched(ThisProcess):
    """Remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, int]] = []

    def run(self, tasks: Sequence[RunTask], told: Told) -> Generator[RunDone, None, None]:
        self.asked = [(task.scenario.network.nodes, task.seed) for task in tasks]
        return super().run(tasks, told)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    file = tmp_path / "mine.toml"
    file.write_text(SCENARIO)
    return load_plan(file)


def test_long_runs_begin_first(plan: Plan) -> None:
    place = Watched()
    assert len(list(run_plan(plan, place))) == 8
    assert place.asked == [(nodes, seed) for nodes in (16, 6) for seed in (1, 2, 3, 4)]


def test_only_what_is_missing_is_done(plan: Plan, tmp_path: Path) -> None:
    out, place = tmp_path / "out", Watched()
    first = {run.planned.run: run.result for run in run_plan(plan, place, folder=out)}
    for name in (plan.runs[1].run, plan.runs[6].run):
        (out / name).rename(tmp_path / name)
    second = list(run_plan(plan, place, folder=out))
    assert place.asked == [(16, 3), (6, 2)]
    assert [run.skipped for run in second] == [True] * 6 + [False] * 2
    for run in second:
        before = first[run.planned.run]
        assert run.result is not None
        assert before is not None
        assert run.result.trace_hash == before.trace_hash
        assert run.result.figures == before.figures, "read from the disk or not"
    list(run_plan(plan, place, folder=out, again=True))
    assert len(place.asked) == 8


def test_progress_is_of_the_work_that_is_left(plan: Plan, tmp_path: Path) -> None:
    told: list[SweepProgress] = []
    place = Watched()
    small = Plan(plan.name, plan.runs[:4])
    list(run_plan(small, place, folder=tmp_path / "out"))
    list(run_plan(plan, place, folder=tmp_path / "out", progress=told.append))
    assert [p.fraction for p in told] == sorted(p.fraction for p in told)
    ended = [p for p in told if p.done > 4]
    assert ended[0].said == "5 of 8 runs done"
    # Four equal runs are left, whatever was there before.
    assert ended[0].fraction == pytest.approx(0.25, abs=0.05)


def test_a_run_that_turns_up_meanwhile_is_taken(plan: Plan, tmp_path: Path) -> None:
    """Two sweeps over one folder do not stop each other."""
    out = tmp_path / "out"
    mine = run_plan(plan, ThisProcess(), folder=out)
    first = next(mine)
    theirs = {run.planned.run: run for run in run_plan(plan, ThisProcess(), folder=out)}
    rest = list(mine)
    assert [run.skipped for run in rest] == [True] * 7
    assert not any(run.failure for run in rest)
    for run in rest:
        assert run.result == read_result(out / run.planned.run)
        assert not theirs[run.planned.run].skipped
    assert theirs[first.planned.run].skipped


@pytest.mark.parametrize(
    "content", [None, b"", b"{", b"\xff\xfe", b'{"result": {}}', b"[" * 100_000],
    ids=["none", "empty", "cut", "no text", "another", "deep"],
)  # fmt: skip
def test_a_result_that_cannot_be_read_is_named_and_made_again_alone(
    plan: Plan, tmp_path: Path, content: bytes | None
) -> None:
    place, told = Watched(), list[str]()
    list(run_plan(plan, place, folder=tmp_path))
    file = tmp_path / plan.runs[0].run / "run.json"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    runs = list(run_plan(plan, place, folder=tmp_path, notice=told.append))
    (said,) = told
    assert said.startswith(f"{file}: no result can be read from it: ")
    assert said.endswith(": it is run again")
    assert place.asked == [(6, 1)], "and no other"
    assert [run.skipped for run in runs] == [True] * 7 + [False]
    assert read_result(file.parent) == runs[-1].result


def test_what_was_not_checked_will_not_do_for_a_check(plan: Plan, tmp_path: Path) -> None:
    small, place, told = Plan(plan.name, plan.runs[:2]), Watched(), list[str]()
    list(run_plan(small, place, folder=tmp_path, check=False))
    assert all(run.skipped for run in run_plan(small, place, folder=tmp_path))
    one = Plan(plan.name, plan.runs[:1])
    (checked,) = run_plan(one, place, folder=tmp_path, check=True, notice=told.append)
    assert checked.result is not None
    assert (checked.skipped, checked.result.checks.liveness) == (False, "passed")
    assert told == [f"{tmp_path / plan.runs[0].run} is there, and was not checked: it is run again"]
    runs = list(run_plan(small, place, folder=tmp_path, check=True))
    assert [run.skipped for run in runs] == [True, False]
