"""Lint and types are tests: they count in the summary like any other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "command",
    ["ruff check", "ruff format --check --diff", "mypy --strict"],
)
def test_is_clean(command: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", *command.split()],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if run.returncode:
        pytest.fail(run.stdout, pytrace=False)
