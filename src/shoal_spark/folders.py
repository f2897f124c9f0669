"""Folders as Arrow takes them: a file system and a path."""

from __future__ import annotations

import os

import pyarrow as pa
from pyarrow import fs

from shoal.base.errors import UsageError


def resolve_folder(folder: str) -> tuple[fs.FileSystem, str, str]:
    """The file system of a folder, its path there, and what makes that path a URI again."""
    if "://" not in folder:
        # With its scheme, since a cluster may take bare paths for those of another file system.
        return fs.LocalFileSystem(), os.path.abspath(folder), "file://"
    try:
        system, path = fs.FileSystem.from_uri(folder)
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"{folder} cannot be opened: {error}") from error
    return system, path, folder[: len(folder.rstrip("/")) - len(path.rstrip("/"))]
