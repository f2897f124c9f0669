"""A publishing node with an outbox, on loopback, for tests of the role and of the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from shoal.config.sections import GatewaySection, OutboxSection
from shoal.gateway import Gateway
from shoal.identity import SeededEntropy
from shoal.identity.message_body import BINARY
from shoal.node import NetworkFile, Node
from shoal.node.roles.outbox import OutboxRole
from shoal.storage.outbox_file import Attempt, ChunkPlace
from tests.node.storage import StorageTown

TOKEN = "a token that nobody guesses"
STREAM = "0x" + "ab" * 20 + "/alerts"


def outbox_network(town: StorageTown, megabytes_max: float = 256.0) -> NetworkFile:
    """The file of the publishing node of a town."""
    (town.folder / "token").write_text(TOKEN + "\n")
    section = OutboxSection(token="file:token", megabytes_max=megabytes_max)
    return msgspec.structs.replace(town.network(), outbox=section, gateway=GatewaySection())


@asynccontextmanager
async def open_publisher(town: StorageTown, megabytes_max: float = 256.0) -> AsyncIterator[Node]:
    """The publishing node, always with the same key."""
    network = outbox_network(town, megabytes_max)
    async with Node.open(network, entropy=SeededEntropy("publisher")) as node:
        yield node


@asynccontextmanager
async def open_gateway(node: Node) -> AsyncIterator[str]:
    """Its gateway; the address."""
    gateway = Gateway(node.host, outbox=node.outbox)
    try:
        yield await gateway.open("127.0.0.1:0")
    finally:
        await gateway.close()


def role_of(node: Node) -> OutboxRole:
    assert node.outbox is not None
    return node.outbox


async def write_batch(
    node: Node,
    batch: int,
    rows: Sequence[bytes],
    *,
    query: str = "q",
    run: str = "r1",
    partition: int | None = None,
    stream: str = STREAM,
) -> int:
    """Stage and seal rows as one task of a query; how many rows the seal counted."""
    role = role_of(node)
    epoch = await role.take_epoch(query, run, stream, once=False)  # type: ignore[arg-type]
    chunks = 0
    for begin in range(0, len(rows), 100):
        some = [(BINARY, partition, None, row) for row in rows[begin : begin + 100]]
        place = ChunkPlace(query, epoch, batch, 0, 0, chunks)
        if not await role.stage(stream, place, some):  # type: ignore[arg-type]
            break
        chunks += 1
    return (await role.seal(query, epoch, batch, [Attempt(0, 0, chunks)])).rows


async def until_published(node: Node, patience_s: float = 30) -> None:
    """Wait until nothing is left to do."""
    async with asyncio.timeout(patience_s):
        while role_of(node).outbox.waiting():
            await asyncio.sleep(0.02)


def numbered(begin: int, end: int) -> list[bytes]:
    return [b"row %d" % number for number in range(begin, end)]


def town_of(folder: Path, *names: str) -> StorageTown:
    return StorageTown(folder, *names, stream=STREAM)
