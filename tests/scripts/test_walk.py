"""Guided walks: what counts as a call, a stop and a return; and that each flow can be walked."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from scripts.walk import (
    COUNTED,
    FLOWS,
    LEFT_OUT,
    SRC,
    Call,
    Recording,
    Stop,
    Total,
    Walk,
    counted,
    shown,
    summed_up,
    totals,
    walk_of,
    walked,
)

FIRST = """
class Made:
    made = [number for number in range(2)]

    def method(self):
        return sum(one + 1 for one in self.made) + len([each for each in self.made])

def numbers():
    yield 1
    yield 2

async def wait(asleep):
    await asleep(0)
    return (lambda: 3)()
"""


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        ("shoal/node/node.py", True),
        ("shoal/cli.py", True),
        ("shoal_lab/sim/faults.py", True),
        ("pyspark_shoal/__init__.py", True),
        ("shoal/kernel/host.py", False),
        ("shoal/sim.py", False),
        ("shoal/simulated.py", True),
        ("shoals/node.py", False),
    ],
)
def test_a_file_counts_by_its_package(path: str, counts: bool) -> None:
    assert counted(f"/src/{path}", "/src/") == (path if counts else None)
    assert counted(f"/lib/{path}", "/src/") is None


def test_the_table_of_packages_fits_the_tree() -> None:
    packages = {path.parent.name for path in SRC.glob("*/__init__.py")}
    assert packages <= set(COUNTED)
    assert [name for name in LEFT_OUT if not (SRC / name.replace(".", "/")).is_dir()] == []


def test_calls_are_starts_of_functions_in_every_thread(tmp_path: Path) -> None:
    path = tmp_path / "shoal" / "first.py"
    code = compile(FIRST, str(path), "exec")
    names: dict[str, Any] = {"__name__": "first"}
    recording = Recording(tmp_path)
    with recording.installed():
        with recording.on():
            exec(code, names)
            assert names["Made"]().method() == 5
            assert list(names["numbers"]()) == [1, 2]
            assert asyncio.run(names["wait"](asyncio.sleep)) == 3
        names["Made"]().method()  # it is off
        with recording.on():
            thread = threading.Thread(target=names["Made"]().method, name="disk")
            thread.start()
            thread.join()
    with recording.on():
        names["Made"]().method()  # it is not installed
    assert [(call.function, call.thread) for call in recording.calls] == [
        ("Made.method", ""),
        ("numbers", ""),
        ("wait", ""),
        ("wait.<locals>.<lambda>", ""),
        ("Made.method", "disk"),
    ]
    assert {call.file for call in recording.calls} == {"shoal/first.py"}


def calls(files: str) -> list[Call]:
    return [Call(f"{file}.py", f"f{number}") for number, file in enumerate(files)]


def test_consecutive_calls_in_a_file_are_one_stop() -> None:
    walk = walk_of(calls("aabaac"))
    assert walk.stops == [
        Stop("a.py", ["f0", "f1"], False, ""),
        Stop("b.py", ["f2"], False, ""),
        Stop("a.py", ["f3", "f4"], True, ""),
        Stop("c.py", ["f5"], False, ""),
    ]
    assert (walk.files, walk.returns, walk.calls) == (3, 1, 6)
    assert walk_of([]) == Walk([], 0)


def test_the_walk_that_is_shown_is_nearest_to_the_medians() -> None:
    result = summed_up("x", [walk_of(calls(files)) for files in ("abababab", "ab", "aba")])
    assert result.files == Total(2, 2, 2)
    assert result.returns == Total(1, 0, 6)
    assert result.calls == Total(3, 2, 8)
    assert [stop.file for stop in result.stops] == ["a.py", "b.py", "a.py"]
    assert list(shown(result, compact=True)) == [
        "          a.py",
        "          b.py",
        "return to a.py",
    ]
    assert [line.strip() for line in shown(result)][1::2] == ["f0", "f1", "f2"]
    assert totals(result).startswith("x: 2 (2 to 2) files, 1 (0 to 6) returns, 3 (2 to 8) calls")


FIRST_AND_LATER = {
    "publish": ("publish", "__anext__"),
    "topic": ("publish", "subscribe"),
    "search": ("search", "__anext__"),
    "spark-in": ("publish", "read"),
    "spark-out": ("streamWriter", "__anext__"),
}


@pytest.mark.parametrize("flow", FLOWS)
def test_a_flow_is_walked_from_end_to_end(flow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripts.walk.POLL_S", 0.25)  # nodes begin sooner
    result = walked(flow, walks=1, warm_ups=0)
    names = [name.rpartition(".")[2] for stop in result.stops for name in stop.functions]
    first, later = FIRST_AND_LATER[flow]
    assert later in names[names.index(first) + 1 :]  # a timer may come before the first one
    assert result.files.median == len({stop.file for stop in result.stops}) > 10
    assert {counted(f"{SRC}/{stop.file}", f"{SRC}/") for stop in result.stops} == {
        stop.file for stop in result.stops
    }
    has_disk = flow.startswith(("spark", "topic"))
    assert any(stop.thread for stop in result.stops) == has_disk
