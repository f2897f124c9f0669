"""The parts of the suite: which test belongs where, and what is shown of them."""

from __future__ import annotations

import pytest

from tests.support.parts import PartTimes, part_of


@pytest.mark.parametrize(
    ("path", "markers", "part"),
    [
        ("tests/test_layers.py", [], "unit"),
        ("tests/sim/test_heap.py", [], "unit"),
        ("tests/lint/test_lint.py", [], "lint"),
        ("tests/simulation/test_flood.py", ["parametrize"], "simulation"),
        ("tests/cli/test_key.py", [], "system"),
        ("tests/system/test_pipeline.py", ["spark"], "spark"),
        ("tests/gateway/test_page.py", ["browser"], "browser"),
    ],
)
def test_a_file_belongs_to_one_part(path: str, markers: list[str], part: str) -> None:
    assert part_of(path, markers) == part


def test_a_part_takes_the_sum_of_its_tests_shared_by_the_processes() -> None:
    times = PartTimes(processes=2)
    for duration in (2.0, 369.0):
        times.pytest_runtest_logreport(report("unit", duration))
    times.pytest_runtest_logreport(report("simulation", 2.0))
    assert [line.split() for line in times.lines()[1:]] == [
        ["unit", "2", "0", "185.5", "180", "over", "budget"],
        ["simulation", "1", "0", "1.0", "180"],
    ]


def test_the_seed_of_a_test_stays_the_same(seed: int, request: pytest.FixtureRequest) -> None:
    given = request.config.getoption("--seed")
    assert seed == (1721641201 if given is None else given)


def report(part: str, duration: float) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid="tests/test_a.py::test_a",
        location=("tests/test_a.py", 0, "test_a"),
        keywords={},
        outcome="passed",
        longrepr=None,
        when="setup",
        user_properties=[("part", part)],
        duration=duration,
    )
