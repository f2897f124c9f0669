"""The library libfaketime, inside .venv, on a machine that has none: for tests of wrong clocks.

python -m scripts.faketime
"""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.debian import fetch, find_program

PACKAGES = ("libfaketime",)
STARTER = """#!/bin/sh
# A program with the unpacked library; what it is told stands in FAKETIME... variables.
here=$(cd "$(dirname "$0")/.." && pwd -P)
LD_PRELOAD=$(echo "$here"/debian/usr/lib/*/faketime/libfaketimeMT.so.1) exec "$@"
"""
STARTERS = {"shoal-faketime": STARTER}


def own_faketime() -> Path:
    """Where it is put."""
    return Path(sys.prefix, "faketime")


def find_faketime() -> str | None:
    """The command that starts a program with it; None if there is none."""
    return find_program("shoal-faketime", own_faketime())


def main() -> None:
    """Fetch it if it is missing."""
    if find_faketime() is None:
        fetch("libfaketime", own_faketime(), PACKAGES, STARTERS)


if __name__ == "__main__":
    main()
