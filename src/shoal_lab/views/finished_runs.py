"""Finished runs of the lab, as their folder has them: what was run, what it gave, and its tables.

Files are read in a thread, when somebody asks for them: a run of 2,048 nodes has 8,192 rows of
links, and some 2,000 deliveries for each message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from shoal.base.errors import NotFound, UsageError
from shoal.kernel.records import RUN_FILE, RUN_FORMAT
from shoal_lab.report import published
from shoal_lab.report.blocks import Comparison
from shoal_lab.report.published import fault_kinds, network_as_published, topics_as_published

RUNS_MAX = 1000  # that are listed
RUN_BYTES_MAX = 1 << 20  # of what a run says of itself
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}")

REMEDY = "`shoal lab run streams-2048 --out DIR` makes one"


class RunFile(msgspec.Struct, frozen=True):
    """What run.json says, as far as people look at it here."""

    format: int
    run: str
    seed: int
    scenario: dict[str, Any]
    result: dict[str, Any]
    tables: dict[str, int]

    @property
    def figures(self) -> dict[str, Any]:
        found = self.result.get("figures")
        return found if isinstance(found, dict) else {}

    def setting(self, *names: str) -> Any:
        """A setting of the scenario; None if it has none."""
        value: Any = self.scenario
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    @property
    def has_overlay(self) -> bool:
        """Whether its messages can be watched on their way."""
        return all(self.tables.get(name) for name in ("nodes", "topologies", "deliveries"))


class RunLine(msgspec.Struct, frozen=True):
    """One run of the list."""

    run: str
    scenario: str
    about: str
    kind: str
    seed: int
    nodes: int
    delays: str
    policy: str
    passed: bool
    has_overlay: bool


def run_line(file: RunFile) -> RunLine:
    """What the list shows of a run."""
    checks = file.result.get("checks") or {}
    return RunLine(
        file.run,
        str(file.setting("name") or file.run),
        str(file.setting("about") or ""),
        f"{file.setting('protocol')}/{file.setting('experiment')}",
        file.seed,
        int(file.setting("network", "nodes") or 0),
        str(file.setting("network", "delays") or ""),
        str(file.setting("network", "policy") or ""),
        "failed" not in checks.values(),
        file.has_overlay,
    )


class RunFolder:
    """A folder of runs; it need not be there."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def all(self) -> list[RunLine]:
        """Runs, by name; what cannot be read is left out."""
        if self.folder is None or not self.folder.is_dir():
            return []
        lines = []
        for path in sorted(self.folder.iterdir()):
            if _NAME.fullmatch(path.name) and (path / RUN_FILE).is_file():
                try:
                    lines.append(run_line(_read(path / RUN_FILE)))
                except UsageError:
                    continue
                if len(lines) >= RUNS_MAX:
                    break
        return lines

    def file(self, run: str) -> RunFile:
        """One run."""
        return _read(self.path(run) / RUN_FILE)

    def path(self, run: str) -> Path:
        """The folder of a run."""
        if self.folder is None or not _NAME.fullmatch(run):
            raise NotFound(f"no run {run!r} here: {REMEDY}")
        path = self.folder / run
        if not (path / RUN_FILE).is_file():
            raise NotFound(f"no run {run!r} in {self.folder.name}: {REMEDY}")
        return path


def _read(path: Path) -> RunFile:
    try:
        if path.stat().st_size > RUN_BYTES_MAX:
            raise UsageError(f"{path.parent.name}: its {RUN_FILE} is too large: is it a run?")
        file = msgspec.json.decode(path.read_bytes(), type=RunFile)
        if file.format != RUN_FORMAT:
            raise UsageError(f"{file.run} has format {file.format}, not {RUN_FORMAT}: run it again")
        return file
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{path.parent.name}: its {RUN_FILE} cannot be read: {error}") from error


# What a finished run gave, beside what was published for the same setting.


FIGURES_MAX = 64  # rows


class ShownFigure(msgspec.Struct, frozen=True):
    """A figure of the run, and the published one if there is one for its setting."""

    name: str
    ours: float | str
    published: float | None = None
    spread: tuple[float, float] | None = None
    difference: float | None = None
    verdict: str = ""


def shown_figures(file: RunFile) -> list[ShownFigure]:
    """First those with something to compare, then all others."""
    compared = [
        ShownFigure(
            told.figure,
            told.ours,
            told.published,
            told.spread,
            told.difference,
            # Without a spread or a tolerance there is a difference, and no verdict.
            told.verdict if told.spread or told.tolerance or told.at_most else "",
        )
        for told in comparisons(file)
    ]
    others = [ShownFigure(name, value) for name, value in _flat(file.figures)]
    return [*compared, *others][:FIGURES_MAX]


def comparisons(file: RunFile) -> Iterator[Comparison]:
    """Published figures of the same setting; a run of another one has none."""
    kind = (file.setting("protocol"), file.setting("experiment"))
    if kind == ("streams", "delivery"):
        yield from _delivery(file)
    elif kind == ("topics", "reddit"):
        yield from _coverage(file)


def _delivery(file: RunFile) -> Iterator[Comparison]:
    from shoal_lab.runs.run_files import flat_settings

    figures, nodes = file.figures, file.setting("network", "nodes")
    delay, hops = figures.get("delay_ms"), figures.get("hops")
    settings = flat_settings(file.scenario)
    as_published = network_as_published(settings) and not fault_kinds(settings)
    if not as_published or not delay or not hops:
        return
    point = f"{nodes:,} nodes"
    size = published.propagation().get(nodes)
    if size is not None:
        yield Comparison(
            figure="mean delay, ms",
            point=point,
            published=size.mean_ms,
            spread=(size.min_ms, size.max_ms),
            ours=delay["mean"],
            tolerance=published.MEAN_TOLERANCE,
        )
    if nodes == published.P99_NODES:
        yield Comparison(
            figure="99 % of deliveries within, ms",
            point=point,
            published=published.P99_MS,
            spread=None,
            ours=delay["p99"],
            tolerance=published.P99_TOLERANCE,
        )
        yield Comparison(
            figure="relative delay penalty",
            point=point,
            published=published.RDP,
            spread=None,
            ours=delay["mean"] / published.UNICAST_MS,
            tolerance=published.MEAN_TOLERANCE,
        )
    if nodes == published.REDUNDANCY_NODES:
        low, high = published.REDUNDANCY_D4
        yield Comparison(
            figure="duplicates per message and node",
            point=point,
            published=(low + high) / 2,
            spread=published.REDUNDANCY_D4,
            ours=figures["duplicates_per_message"],
        )


def _coverage(file: RunFile) -> Iterator[Comparison]:
    from shoal_lab.runs.run_files import flat_settings

    options, figures = file.setting("options") or {}, file.figures
    floods = options.get("system") == "floodsub"
    ordered, slow = bool(options.get("ordered")) and not floods, bool(options.get("slow"))
    system = "floodsub" if floods else "pulsarcast"
    told = published.coverage().get((system, ordered, slow))
    as_published = topics_as_published(flat_settings(file.scenario))
    if not as_published or told is None or "coverage_percent" not in figures:
        return
    yield Comparison(
        figure="deliveries of accepted events that came, %",
        point=system,
        published=told.of_published_percent,
        spread=None,
        ours=figures["coverage_percent"],
    )
    yield Comparison(
        figure="deliveries of all events that came, %",
        point=system,
        published=told.of_injected_percent,
        spread=None,
        ours=figures["coverage_of_issued_percent"],
    )


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, float | str]]:
    """Numbers and words of nested figures, each under its path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name} {key}".strip().replace("_", " "))
    elif isinstance(value, bool):
        yield name, "yes" if value else "no"
    elif isinstance(value, int | float | str):
        yield name, value
