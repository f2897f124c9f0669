"""The command."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.serve import Config

if TYPE_CHECKING:
    from shoal.cli.doctor.findings import Finding


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

    from shoal.cli.doctor.findings import State

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
    from shoal.cli.doctor import machine
    from shoal.cli.doctor.findings import ok, problem, warning
    from shoal.node.network_file import load_network_file

    yield machine.python()
    yield machine.open_files()
    yield machine.spark(os.environ)
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
    from shoal.cli.doctor import network as examine

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
    for finding in machine.disks([network.path("."), *folders]):
        yield finding
