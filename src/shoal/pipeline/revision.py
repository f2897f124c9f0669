"""Which commit runs: that of a clone, or the one that an archive for executors was packed from."""

from __future__ import annotations

import subprocess
from pathlib import Path

PACKED = "commit.txt"
"""Beside the modules of an archive, where there is no git."""

_PACKAGE = Path(__file__).parents[1]
_ROOT = _PACKAGE.parents[1]  # of the source tree, if this is one


def source_commit() -> str:
    """With a plus sign if files were changed; empty if nothing tells."""
    packed = _PACKAGE / PACKED
    if packed.is_file():
        return packed.read_text().strip()
    if not (_ROOT / ".git").exists():
        return ""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(_ROOT), *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
