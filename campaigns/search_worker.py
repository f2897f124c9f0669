"""A worker process of the campaign of search over sockets: nodes that put documents and search.

    python -m campaigns.search_worker

What it is told is in search_words.py.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

from campaigns.search_words import (
    Answered,
    Ask,
    Kept,
    NodeFigures,
    Put,
    Refused,
    SearchWork,
    ToWorker,
    name_of,
)
from campaigns.worker import Member, Worker, be, say
from campaigns.worker_words import Look, NodeWork
from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId
from shoal.base.units import MS_NS
from shoal.config.sections import NodeSection, SearchSection
from shoal.kernel.machine import SEARCH
from shoal.node import NetworkFile, Node
from shoal.node.search import client
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.wire import CODE_BYTES, Code
from shoal.transport.port import Frame

SEARCH_S_MAX = 30.0  # a search ends by itself long before


class SearchMember(Member):
    """One node, and the messages of search that it got."""

    def __init__(self, work: NodeWork, node: Node) -> None:
        super().__init__(work, node)
        self._messages: Counter[bytes] = Counter()
        self._bytes = 0

    def figures(self) -> NodeFigures:
        """What was counted, and the node as it is."""
        parts = self.node.searching.door.machine.parts
        known = parts.measurement.known
        return NodeFigures(
            number=self.work.number,
            messages={_name(code): count for code, count in self._messages.items()},
            bytes=self._bytes,
            rejected=dict(self.rejected),
            held=len(parts.holdings),
            nodes=0.0 if known is None else known.nodes,
            degree=parts.circle.degree,
        )

    def count(self, sender: NodeId, frames: Sequence[Frame]) -> None:
        """Something has come in."""
        for protocol, payload in frames:
            if protocol == SEARCH:
                self._messages[bytes(payload[:CODE_BYTES])] += 1
                self._bytes += len(payload)


class SearchWorker(Worker[SearchWork]):
    """Nodes of the search network."""

    def __init__(self, work: SearchWork, group: asyncio.TaskGroup) -> None:
        super().__init__(work, group)
        self._members: dict[int, SearchMember] = {}
        if work.beat_ms is not None:
            # Network files have no such setting: all nodes of a network must keep to one beat.
            beating = partial(SearchConfig, beat_ns=round(work.beat_ms * MS_NS))
            client.SearchConfig = beating  # type: ignore[attr-defined, assignment]

    def network(self, one: NodeWork) -> NetworkFile:
        """What a node is made from."""
        return NetworkFile(
            node=NodeSection(listen=(one.listen,)),
            search=SearchSection(bootstrap=one.bootstrap),
            folder=one.folder,
        )

    def add(self, one: NodeWork, node: Node) -> None:
        """A node runs."""
        self._members[one.number] = SearchMember(one, node)

    def do(self, command: ToWorker) -> None:
        """Begin with it."""
        match command:
            case Put():
                self.start(_put(self._members[command.node].node, command))
            case Ask():
                self.start(_ask(self._members[command.node].node, command))
            case Look():
                say(self.figures(member.figures() for member in self._members.values()))


async def _put(node: Node, command: Put) -> None:
    name = name_of(command.document)
    try:
        made = await node.put(command.content, name=name, kind=command.life)
    except ShoalError as error:
        say(Refused(command.document, str(error)))
    else:
        say(Kept(command.document, made.nodes))


async def _ask(node: Node, command: Ask) -> None:
    found: list[str] = []
    first_ms = None
    begin_s = time.monotonic()
    try:
        search = node.search(command.query, confidence=command.confidence, within=SEARCH_S_MAX)
        async for hit in search:
            if first_ms is None:
                first_ms = (time.monotonic() - begin_s) * 1000
            found.append(hit.name)
    except ShoalError as error:
        say(Refused(command.document, str(error)))
        return
    say(
        Answered(
            document=command.document,
            found=tuple(found),
            confidence=search.confidence,
            asked=search.asked,
            nodes=search.nodes,
            first_ms=first_ms,
        )
    )


def _name(code: bytes) -> str:
    try:
        return Code(int.from_bytes(code)).name
    except ValueError:
        return code.hex()


if __name__ == "__main__":
    be(SearchWorker, SearchWork, ToWorker)
