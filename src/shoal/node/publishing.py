"""A node's own messages: sealed if not everybody may read them, numbered and sent by the stream
machine, and kept by storage nodes if they are to be durable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from shoal.base.errors import HistoryUnavailable
from shoal.base.ids import KEYS_PARTITION, MessageId, StreamId
from shoal.identity.stream_message import KEYS
from shoal.node.history import NodeHistory, NotKept
from shoal.node.keys import NodeKeys
from shoal.node.unkept import UnkeptMessages
from shoal.protocols.streams.commands import Publish, PublishAccepted
from shoal.protocols.streams.node import StreamNode
from shoal.runtime import RuntimeHost


class _Receipt(msgspec.Struct, eq=False):
    """The token of a Publish: what the machine said to it."""

    id: MessageId | None = None
    signed: bytes = b""


class Publishing:
    """How messages leave a node that is in their stream."""

    def __init__(
        self, host: RuntimeHost, machine: Callable[[], StreamNode], history: NodeHistory
    ) -> None:
        """`machine` gives the stream machine, or says why there is none."""
        self.keys: NodeKeys | None = None
        """What they are sealed with, in a network with a registry."""
        self._host = host
        self._machine = machine
        self._history = history
        self.unkept = UnkeptMessages(self._keep)
        """Durable messages that wait for storage nodes."""

    async def publish(
        self, stream: StreamId, content: bytes, content_type: int, partition: int, copies: int
    ) -> MessageId:
        """Send one message, and have so many storage nodes keep it."""
        sealer = None if self.keys is None else await self.keys.sealer(stream)
        seal = None if sealer is None else sealer.seal
        receipt = await self._issue(Publish(stream, content, content_type, partition, seal))
        assert receipt.id is not None  # the machine says so at once, or raises
        if copies:
            await self._have_kept(receipt.id, receipt.signed, copies)
        return receipt.id

    async def _have_kept(self, id: MessageId, signed: bytes, copies: int) -> None:
        """Return when it has its copies; else it is kept here, and tried again."""
        try:
            await self._keep(id.stream, signed, copies)
        except HistoryUnavailable as error:
            if error.refused:
                raise
            where = "has no room for it, and forgets it"
            if self.unkept.add(id, signed, copies):
                on_disk = await self.unkept.flushed()
                where = f"tries again, and has it {self._place(on_disk)}"
            raise HistoryUnavailable(f"{error}; this node {where}", message=id) from None
        except NotKept:
            raise
        except BaseException:  # whoever waits for it does not any more
            self.unkept.add(id, signed, copies)
            raise

    async def _keep(self, stream: StreamId, signed: bytes, copies: int) -> None:
        if self.keys is not None:
            await self.keys.keep(stream, copies)
        await self._history.keep(stream, signed, copies)

    def _place(self, on_disk: bool) -> str:
        path = self.unkept.path
        if path is None:
            return "in memory, for it has no key file"
        if not on_disk:
            return f"in memory, for {path} cannot be written"
        return f"on disk in {path}, for its next start, too"

    async def announce(self, stream: StreamId, content: bytes) -> bytes:
        """Hand out keys of this node's messages; what was signed."""
        return (await self._issue(Publish(stream, content, KEYS, KEYS_PARTITION))).signed

    def heard(self, event: Any) -> None:
        """The machine said something."""
        if type(event) is PublishAccepted and isinstance(event.token, _Receipt):
            event.token.id, event.token.signed = event.id, event.signed

    async def _issue(self, command: Publish) -> _Receipt:
        self._host.demand_session()
        if self._host.check_clock is not None:
            await self._host.check_clock()
        receipt = _Receipt()
        await self._host.issue(self._machine(), command, receipt)
        return receipt
