"""The parts of the test suite, their order, and what each took against its budget."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import PurePosixPath

import pytest

# Seconds on two cores. Parts run in this order: what fails fastest comes first.
BUDGET_S = {
    "lint": 60,
    "unit": 180,
    "simulation": 180,
    "system": 240,
    "spark": 180,
    "browser": 120,
}
PART_OF_FOLDER = {
    "lint": "lint",
    "simulation": "simulation",
    "system": "system",
    "cli": "system",  # commands, run as processes
}
MARKERS = ("spark", "browser")


def part_of(path: str, markers: Collection[str] = ()) -> str:
    """The part a test file belongs to: by marker, else by folder, else it is a unit test."""
    for marker in MARKERS:
        if marker in markers:
            return marker
    folder = PurePosixPath(path).parts[1:2]
    return PART_OF_FOLDER.get(folder[0], "unit") if folder else "unit"


class PartTimes:
    """A pytest plugin: puts the parts in order, and shows the seconds of each above the summary.

    Parts overlap when several processes share the work: what a part takes is the sum of its tests,
    over the number of processes.
    """

    def __init__(self, processes: int = 1) -> None:
        self._processes = processes
        self._tests: dict[str, int] = {}
        self._failed: dict[str, int] = {}
        self._took_s: dict[str, float] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            markers = {mark.name for mark in item.iter_markers()}
            # Travels with the reports of the item, also from another process.
            item.user_properties.append(("part", part_of(item.nodeid.split("::")[0], markers)))
        order = list(BUDGET_S)
        items.sort(key=lambda item: order.index(_part(item.user_properties)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        part = _part(report.user_properties)
        self._took_s[part] = self._took_s.get(part, 0.0) + report.duration
        self._tests[part] = self._tests.get(part, 0) + (report.when == "setup")
        self._failed[part] = self._failed.get(part, 0) + report.failed

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._took_s:
            return
        terminalreporter.section("parts")
        for line in self.lines():
            terminalreporter.write_line(line)

    def lines(self) -> list[str]:
        """One line per part that ran."""
        lines = [f"{'part':<11}{'tests':>6}{'failed':>8}{'seconds':>9}{'budget':>8}"]
        for part, budget_s in BUDGET_S.items():
            if part in self._took_s:
                took_s = self._took_s[part] / self._processes
                late = "  over budget" if took_s > budget_s else ""
                counts = f"{self._tests[part]:>6}{self._failed[part]:>8}"
                lines.append(f"{part:<11}{counts}{took_s:>9.1f}{budget_s:>8}{late}")
        return lines


def _part(user_properties: list[tuple[str, object]]) -> str:
    return str(dict(user_properties)["part"])
