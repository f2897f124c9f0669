"""The machine: Python, limits, disks, Spark."""

from __future__ import annotations

import platform
import resource
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from shoal.cli.doctor.findings import Finding, ok, problem, warning

OPEN_FILES_MIN = 1024  # a link takes one; a tracker has as many as nodes
FREE_BYTES_LOW = 2_000_000_000
FREE_BYTES_MIN = 100_000_000  # a store stops taking messages long before the disk is full


def python() -> Finding:
    """Which, and whether it has an EVM."""
    found = f"{platform.python_implementation()} {platform.python_version()}"
    if find_spec("pyrevm") is None:
        return warning(
            "python",
            f"{found}, without pyrevm: no embedded registry",
            "use Python 3.11 or 3.12, or a registry on a chain",
        )
    return ok("python", found)


def open_files() -> Finding:
    """How many sockets and files a process may have; whatever has many links asks for all."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY or most >= OPEN_FILES_MIN:
        return ok("open files", "no limit" if most == resource.RLIM_INFINITY else f"{most}")
    return warning("open files", f"{most}: as few links", "have the system's limit raised")


def disks(folders: list[Path]) -> Iterator[Finding]:
    """Room where something is kept."""
    seen: dict[int, Path] = {}
    for folder in folders:
        there = folder
        while not there.exists():
            there = there.absolute().parent
        seen.setdefault(there.stat().st_dev, there)
    for folder in seen.values():
        free_bytes = shutil.disk_usage(folder).free
        found = f"{free_bytes / 1e9:.1f} GB free at {folder}"
        if free_bytes < FREE_BYTES_MIN:
            yield problem("disk", found, "free some: nothing can be stored")
        elif free_bytes < FREE_BYTES_LOW:
            yield warning("disk", found, "free some, or lower gigabytes_max under [storage]")
        else:
            yield ok("disk", found)


def spark(environment: Mapping[str, str]) -> Finding:
    """Whether the pipeline would run."""
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]
    if missing:
        return warning(
            "spark",
            f"{', '.join(missing)} not installed: no `shoal pipeline`, no `shoal lab report`",
            "`pip install 'shoal[spark]'`, or ./run in a clone",
        )
    from shoal.pipeline.java import NoJava, find_java

    try:
        java = find_java(environment, Path(sys.prefix))
    except NoJava as error:
        return warning("spark", "no Java that Spark takes", str(error))
    return ok("spark", f"installed; Java at {java}")
