"""Paths of this machine, where somebody may name a place that is none."""

from __future__ import annotations

from pathlib import Path

from shoal.base.errors import UsageError

FILE_SCHEME = "file://"


def local_path(option: str, text: str) -> Path:
    """The path that an option names; UsageError for a URI, which would be a folder called `hdfs:`
    in the current one."""
    if "://" in text:
        remedy = "name a folder or file of this machine, and copy what is written from there"
        if text.startswith(FILE_SCHEME):
            remedy = f"write {text.removeprefix(FILE_SCHEME) or 'a path'}"
        raise UsageError(f"{option} {text} is a URI, and nothing is written to those: {remedy}")
    return Path(text)
