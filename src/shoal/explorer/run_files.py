"""Finished runs of the lab, as their folder has them: what was run, what it gave, and its tables.

Files are read in a thread, when somebody asks for them: a run of 2,048 nodes has 8,192 rows of
links, and some 2,000 deliveries for each message.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from shoal.base.errors import NotFound, UsageError
from shoal.kernel.run_header import RUN_FILE, RUN_FORMAT

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
