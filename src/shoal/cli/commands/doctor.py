"""The command."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from shoal.cli.terminal.process import Config


def doctor(
    config: Config = Path("shoal.toml"),
    as_json: Annotated[bool, typer.Option("--json", help="Lines of JSON.")] = False,
) -> None:
    """Look for what would keep a node from working here: Python, limits, disks, Spark; and of its
    network file the key, everybody whom it names, the clock, the registry; and the roles of the
    node that runs with it, if it has a gateway. Nothing is changed.

    Ends with 1 if there is a problem; a warning is none.

    Example: shoal doctor --config shoal.toml
    """
    problems = asyncio.run(_examine(config, as_json))
    if problems:
        print(f"{problems} problem{'s' * (problems != 1)}", file=sys.stderr)
        raise typer.Exit(1)


async def _examine(config: Path, as_json: bool) -> int:
    import msgspec

    problems = 0
    async for finding in _findings(config):
        problems += finding.state is State.PROBLEM
        if as_json:
            print(msgspec.json.encode(finding).decode(), flush=True)
        else:
            remedy = f" -> {finding.remedy}" if finding.remedy else ""
            print(f"{finding.state:<8} {finding.what}: {finding.found}{remedy}", flush=True)
    return problems


async def _findings(config: Path) -> AsyncIterator[Finding]:
    from shoal.base.errors import ShoalError
    from shoal.config.network_file import load_network_file
    from shoal_spark import commands

    yield python()
    yield open_files()
    yield commands.spark(os.environ)
    if not config.exists():
        yield warning(
            "network file",
            f"there is no {config}",
            "`shoal up` makes one, with a network; or see docs/network-file.md",
        )
        return
    try:
        network = load_network_file(config)
    except ShoalError as error:
        yield problem("network file", f"{config} cannot be used", str(error))
        return
    yield ok("network file", f"{config}")
    from shoal.cli.commands import doctor_network as examine

    yield await examine.key(network)
    session = examine.session(network)
    if session is not None:
        yield session
    for finding in await examine.peers(network):
        yield finding
    for finding in await examine.roles(network):
        yield finding
    async for finding in examine.clocks(network):
        yield finding
    registry = await examine.registry(network)
    if registry is not None:
        yield registry
    for finding in examine.folders(network):
        yield finding
    waiting = examine.unkept(network)
    if waiting is not None:
        yield waiting
    kept = examine.store(network)
    if kept is not None:
        yield kept
    sections = (network.storage, network.topics, network.outbox)
    folders = [network.path(section.folder) for section in sections if section is not None]
    for finding in disks([network.path("."), *folders]):
        yield finding


# What an examination finds.


class State(StrEnum):
    """How it is."""

    OK = "ok"
    WARNING = "warning"
    """It works, but not everything, or not for long."""
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True):
    """One line."""

    what: str
    state: State
    found: str
    remedy: str = ""


def ok(what: str, found: str) -> Finding:
    """All is well."""
    return Finding(what, State.OK, found)


def warning(what: str, found: str, remedy: str) -> Finding:
    """Something to know."""
    return Finding(what, State.WARNING, found, remedy)


def problem(what: str, found: str, remedy: str) -> Finding:
    """Something to mend."""
    return Finding(what, State.PROBLEM, found, remedy)


# The machine: Python, limits, disks, Spark.


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
