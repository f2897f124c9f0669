"""The command line that campaigns of kills share: so many kills, a seed, progress, and a result.

The process that is killed is the campaign's own module again, with `--victim`: so a campaign is one
file, and what it kills is started the same way wherever the campaign itself was started from.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

KILLS = 200
ROOT = Path(__file__).resolve().parents[1]
"""Where victims are started: modules of campaigns are found there."""

Show = Callable[[int], None]  # after each kill
Run = Callable[[Path, int, int, Show], Any]  # folder, kills, seed


class Failure(Exception):
    """Something that must hold did not."""


def victim(module: str, *arguments: object) -> list[str]:
    """The command that starts the process to be killed; its folder must be ROOT."""
    return [sys.executable, "-m", module, "--victim", *map(str, arguments)]


def main(module: str, description: str, run: Run, be_victim: Callable[..., None]) -> None:
    """Run a campaign, or be its victim."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        epilog=f"example: .venv/bin/python -m {module} --kills 20 --seed 7",
    )
    parser.add_argument("--kills", type=int, default=KILLS, help=f"{KILLS} unless told otherwise")
    parser.add_argument("--seed", type=int, default=1, help="other moments for another number")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--victim", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.victim:
        be_victim(*options.victim)
        return

    def show(kill: int) -> None:
        print(f"\r{kill} of {options.kills} kills", end="", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="shoal-kill-") as folder:
        try:
            result = run(Path(folder), options.kills, options.seed, show)
        except Failure as failure:
            sys.exit(f"\n{failure}")
    print(file=sys.stderr)
    if options.json:
        print(msgspec.json.encode(result).decode())
        return
    for name, value in result.items():
        print(f"{name:<22}{value}")
