"""Asking who may do what, at the asyncio driver."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from shoal.base.errors import UsageError
from shoal.base.ids import NodeId, StreamId
from shoal.kernel.access import Permission, Tell, Verdict
from shoal.kernel.effects import CheckAccess
from shoal.kernel.inputs import AccessChanged, AccessChecked, Started
from shoal.runtime import RuntimeHost
from tests.support.machines import NoteCodec, Scripted, peer_id

ME, PEER = peer_id(1), peer_id(2)
STREAM = StreamId("city/vehicles")
VERDICT = Verdict(Permission.PUBLISH, 7)


class Slow:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[StreamId, NodeId, Tell]] = []

    def check(self, stream: StreamId, who: NodeId, tell: Tell) -> None:
        self.asked.append((stream, who, tell))


def test_an_answer_comes_when_it_comes_and_never_after_the_end() -> None:
    async def main() -> None:
        access, machine = Slow(), Scripted()
        host = RuntimeHost(ME, [machine], [NoteCodec()], rng=Random(1), access=access)
        await host.open([], [])
        await host.issue(machine, [CheckAccess(STREAM, PEER)])
        ((stream, who, tell),) = access.asked
        assert (stream, who) == (STREAM, PEER)
        tell(VERDICT)
        host.access_changed(AccessChanged(STREAM, PEER))
        await host.stop()
        tell(VERDICT)
        host.access_changed(AccessChanged())
        assert machine.heard() == [
            Started(),
            AccessChecked(STREAM, PEER, VERDICT),
            AccessChanged(STREAM, PEER),
        ]

    asyncio.run(main())


def test_without_a_registry_nobody_may_ask() -> None:
    async def main() -> None:
        machine = Scripted()
        host = RuntimeHost(ME, [machine], [NoteCodec()], rng=Random(1))
        await host.open([], [])
        with pytest.raises(UsageError, match="this node has no registry"):
            await host.issue(machine, [CheckAccess(STREAM, PEER)])
        await host.stop()

    asyncio.run(main())
