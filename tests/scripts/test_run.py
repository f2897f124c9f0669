"""./run: which command it becomes, and what it installs for that."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "run"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A clone with programs that say how they were called."""
    shutil.copy(RUN, tmp_path / "run")
    for name in ("scripts/prepare", ".venv/bin/shoal"):
        program = tmp_path / name
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\necho {program.name} "$@"\n')
        program.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "kind", "command"),
    [
        ("", "spark", "demo"),
        ("--seconds 6 --json", "spark", "demo --seconds 6 --json"),
        ("demo --json", "spark", "demo --json"),
        ("--no-spark", "runtime", "demo --no-spark"),
        ("--json --no-spark --nodes 4", "runtime", "demo --json --no-spark --nodes 4"),
        ("demo --no-spark", "runtime", "demo --no-spark"),
        ("demo --help", "runtime", "demo --help"),
        ("--help", "runtime", "--help"),
        ("--version", "runtime", "--version"),
        ("pipeline vehicles --once", "spark", "pipeline vehicles --once"),
        ("lab report out", "spark", "lab report out"),
        ("lab run x --master local[2]", "spark", "lab run x --master local[2]"),
        ("lab run x", "runtime", "lab run x"),
        ("serve --tracker", "runtime", "serve --tracker"),
    ],
)
def test_only_what_needs_spark_waits_for_it(
    folder: Path, words: str, kind: str, command: str
) -> None:
    said = subprocess.run(
        [folder / "run", *words.split()], capture_output=True, text=True, check=True
    ).stdout
    assert said.splitlines() == [f"prepare {kind}", f"shoal {command}"]
