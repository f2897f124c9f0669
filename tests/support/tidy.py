"""Rules of shape that need no parser: unfinished marks, empty names, local paths."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tests.support.layers import Violation

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b")
# They say that things are kept together, not what for.
EMPTY_WORDS = {"common", "helper", "helpers", "manager", "managers", "util", "utils"}
EMPTY_CLASS = re.compile(r"^\s*class (\w*(?:Manager|Helpers?|Utils?))\b")
LOCAL_PATH = re.compile(r"(?<![\w.~-])/(?:Users|home|mnt|opt|root|srv|work)/\w")
TEXT_SUFFIXES = {
    "", ".css", ".html", ".in", ".js", ".json", ".md", ".py", ".sh", ".svelte", ".toml", ".ts",
    ".txt", ".vy", ".yaml", ".yml",
}  # fmt: skip
UNTRACKED_FOLDERS = {"__pycache__", "build", "dist", "node_modules", "results"}


def source_violations(path: str, source: str) -> list[Violation]:
    """A Python file of the package: how finished, how named."""
    found = [
        Violation(path, 1, f"the name {part!r} does not say what it is for")
        for part in PurePosixPath(path).with_suffix("").parts
        if part.split("_")[-1] in EMPTY_WORDS
    ]
    for number, line in enumerate(source.splitlines(), 1):
        if mark := UNFINISHED.search(line):
            found.append(Violation(path, number, f"unfinished: {mark[1]}"))
        if name := EMPTY_CLASS.search(line):
            found.append(Violation(path, number, f"the name {name[1]!r} does not say what it does"))
    return found


def local_path_violations(path: str, text: str) -> list[Violation]:
    """Places of one machine, which mean nothing on another."""
    return [
        Violation(path, number, f"a path of one machine: {line.strip()[:80]}")
        for number, line in enumerate(text.splitlines(), 1)
        if LOCAL_PATH.search(line)
    ]


def text_files(root: Path) -> Iterator[Path]:
    """Every text file that belongs to the project."""
    for entry in sorted(root.iterdir()):
        if entry.is_dir():
            hidden = entry.name.startswith(".") and entry.name not in (".ci", ".github")
            if not hidden and entry.name not in UNTRACKED_FOLDERS:
                yield from text_files(entry)
        elif entry.suffix in TEXT_SUFFIXES:
            yield entry
