"""Nodes in a process of their own, told by lines what to do, telling in lines what happened.
A stubborn node does not ask its own registry first: others have to refuse it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import shoal
from shoal.base.ids import Contact, MessageId, NodeId, parse_node_id, show_node_id
from shoal.base.units import MS_NS
from shoal.kernel.access import Permission
from shoal.kernel.effects import Send
from shoal.kernel.records import LinkUp, ReceivedFirst, Record, Rejected
from shoal.node.node import Node
from shoal.node.streams.stream import Stream
from shoal.protocols.streams.commands import MessageArrived
from shoal.protocols.streams.messages import Open, Want


class Peer:
    """One node, and what it has seen."""

    def __init__(self, node: Node, stack: AsyncExitStack) -> None:
        self.node = node
        self.inbox: list[tuple[str, Any, Any]] = []
        self.arrived: dict[str, MessageArrived] = {}
        self.taken: dict[str, int] = {}
        self.refused: dict[str, int] = {}
        self.linked: set[str] = set()
        self.ended: dict[str, str] = {}
        self._stack = stack
        self._reading: list[asyncio.Task[None]] = []
        node.host.listeners.append(self._told)
        node.host.observers.append(self._saw)

    def _told(self, event: Any) -> None:
        if type(event) is MessageArrived and event.message.id.partition == 0:
            self.arrived[_message(event.message.id)] = event

    def _saw(self, now_ns: int, record: Record) -> None:
        if isinstance(record, Rejected):
            self.refused[record.reason] = self.refused.get(record.reason, 0) + 1
        elif isinstance(record, ReceivedFirst):
            self.taken[_message(record.message)] = now_ns // MS_NS
        elif isinstance(record, LinkUp):
            self.linked.add(_name(record.peer))

    async def obey(self, command: str, stream: str, said: Any) -> Any:
        """What the node answers to a command."""
        node = self.node
        assert node.registry is not None
        match command:
            case "who":
                return _name(node.id), node.peer_id, list(node.addresses)
            case "seen":
                return node.registry.registry.seen.number
            case "inbox":
                return self.inbox
            case "taken":
                return self.taken
            case "refused":
                return self.refused
            case "linked":
                return sorted(self.linked)
            case "ended":
                return self.ended
            case "carriers":
                links = node.host.connections.values()
                return [type(link._carrier).__name__ for link in links]  # type: ignore[attr-defined]
            case "stubborn":
                node.registry = Yielding(node.registry)  # type: ignore[assignment]
                return None
        return await self._take_part(command, await node.open_stream(stream), said)

    async def _take_part(self, command: str, stream: Stream, said: Any) -> Any:
        node = self.node
        match command:
            case "neighbours":
                assert node._streams is not None
                return [_name(peer) for peer in node._streams.streams[stream.id].channel.active]
            case "readable":
                assert node.keys is not None
                opened = {id: node.keys.opened(event) for id, event in self.arrived.items()}
                return [id for id, found in opened.items() if type(found) is MessageArrived]
            case "may":
                assert node.registry is not None
                return await node.registry.may(stream.id, Permission[said])
            case "knock":
                await self._knock(stream, *said)
            case "subscribe":
                messages = await self._stack.enter_async_context(stream.subscribe())
                self._reading.append(asyncio.create_task(self._read(messages)))
            case "send":
                return _message(await stream.publish(said))
            case "publish":
                return _message(await stream.publish(said, durable=True))
            case "read":
                return [_row(message) async for message in stream.read()]
        return None

    async def _knock(self, stream: Stream, member: str, addresses: list[str], known: str) -> None:
        """Act as a member's neighbour that no tracker has made one, and ask for a message."""
        host, peer = self.node.host, parse_node_id(member)
        host.dial(Contact(peer, tuple(addresses)))
        while peer not in host.connections:
            await asyncio.sleep(0.01)
        publisher, chain, timestamp_ms, sequence = known.split()
        head = (parse_node_id(publisher), 0, chain), (int(timestamp_ms), int(sequence))
        for message in (Open(stream.id, False), Open(stream.id, True), Want(stream.id, head)):
            host.send(0, Send(message, (peer,)))

    async def _read(self, messages: shoal.Subscription) -> None:
        try:
            async for message in messages:
                self.inbox.append(_row(message))
        except shoal.ShoalError as error:
            self.ended = {type(error).__name__: str(error)}


class Yielding:
    """A registry that lets the application do what it wants; the machines ask the real one."""

    def __init__(self, role: Any) -> None:
        self._role = role

    def __getattr__(self, name: str) -> Any:
        return getattr(self._role, name)

    async def demand(self, *_: object) -> None:
        return


def _name(node: NodeId) -> str:
    return show_node_id(node)


def _message(id: MessageId) -> str:
    return f"{_name(NodeId(id.publisher))} {id.chain} {id.timestamp_ms} {id.sequence}"


def _row(message: shoal.Message) -> tuple[str, Any, Any]:
    """Who said what, and what is wrong with it."""
    wrong = message.undecryptable or (message.gap_before and message.gap_before.reason)
    return message.publisher, message.content, wrong


async def lines() -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        yield line


async def main() -> None:
    peers: list[Peer] = []
    async with AsyncExitStack() as stack:

        async def answer(peer: Peer, command: str, stream: str, said: Any) -> Any:
            try:
                return await peer.obey(command, stream, said)
            except shoal.ShoalError as error:
                return {type(error).__name__: str(error)}

        async def add(path: str) -> Any:
            try:
                peers.append(Peer(await stack.enter_async_context(Node.open(path)), stack))
            except shoal.ShoalError as error:
                return {type(error).__name__: str(error)}
            return None

        print("ready", flush=True)
        async for line in lines():
            command, stream, said, which = json.loads(line)
            if command == "open":
                doing = [add(path) for path in said]
            else:
                some = peers if which is None else [peers[which]]
                doing = [answer(peer, command, stream, said) for peer in some]
            print(json.dumps(await asyncio.gather(*doing)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
