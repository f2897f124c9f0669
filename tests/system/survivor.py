"""One process of the survival test: a node with some role, told what to do on stdin.

    python -m tests.system.survivor

Its first line of stdin is its Part. It says "ready" when it is in its streams; then it takes
"publish", "hush" and "stop", a line each. What it is given and what it publishes goes to journals,
a line each, written before the next one: so they tell the truth also after SIGKILL.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import uvloop

from shoal.base.ids import MessageId
from shoal.identity import SystemEntropy
from shoal.node import Last, Message, NetworkFile, Node, Stream
from tests.system.survival_parts import Part, secret_of


class NamedEntropy(SystemEntropy):
    """The same key for the same name, and nothing else that anybody could guess."""

    def __init__(self, name: str) -> None:
        self._secret: bytes | None = secret_of(name)

    def token(self, size: int) -> bytes:
        secret, self._secret = self._secret, None
        return super().token(size) if secret is None else secret


class Survivor:
    """Runs one node."""

    def __init__(self, part: Part, stack: AsyncExitStack, group: asyncio.TaskGroup) -> None:
        self._part = part
        self._stack = stack
        self._group = group
        self._publishing: list[asyncio.Task[None]] = []
        self._streams: list[Stream] = []

    async def open(self) -> None:
        """Start, and be in every stream."""
        network = msgspec.convert(self._part.network, NetworkFile)
        entropy = NamedEntropy(self._part.name)
        node = await self._stack.enter_async_context(Node.open(network, entropy=entropy))
        for id, start in self._part.subscribe.items():
            stream = await node.open_stream(id)
            begin = Last(int(start.removeprefix("last "))) if start.startswith("last ") else start
            messages = await self._stack.enter_async_context(stream.subscribe(start=begin))
            self._group.create_task(self._listen(messages, "received"))
        for id in self._part.publish:
            self._streams.append(await node.open_stream(id))

    def start_publishing(self) -> None:
        for stream in self._streams:
            self._publishing.append(self._group.create_task(self._publish(stream)))

    async def hush(self) -> None:
        for task in self._publishing:
            task.cancel()
        await asyncio.gather(*self._publishing, return_exceptions=True)

    async def _listen(self, messages: object, kind: str) -> None:
        with self._journal(kind) as journal:
            async for message in messages:  # type: ignore[attr-defined]
                assert isinstance(message, Message)
                journal.write(_line(message.id, gap=message.gap_before is not None))

    async def _publish(self, stream: Stream) -> None:
        number = 0
        with self._journal("published") as journal:
            while True:
                publishing = asyncio.ensure_future(
                    stream.publish({"from": self._part.name, "number": number})
                )
                try:
                    await asyncio.shield(publishing)
                finally:  # hushed meanwhile: it goes out all the same
                    journal.write(_line(await publishing, gap=False))
                number += 1
                await asyncio.sleep(1 / self._part.rate_per_s)

    def _journal(self, kind: str) -> Journal:
        return Journal(Path(self._part.folder, f"{kind}-{self._part.journal}.jsonl"))


class Journal:
    """Lines, unbuffered."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, line: bytes) -> None:
        self._file.write(line)


def _line(id: MessageId, *, gap: bool) -> bytes:
    return (
        msgspec.json.encode(
            [id.stream, id.publisher.hex(), id.chain, id.timestamp_ms, id.sequence, gap]
        )
        + b"\n"
    )


async def main() -> None:
    reader = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    part = msgspec.json.decode(await reader.readline(), type=Part)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        survivor = Survivor(part, stack, group)
        await survivor.open()
        print("ready", flush=True)
        while (line := await reader.readline()) and line != b"stop\n":
            if line == b"publish\n":
                survivor.start_publishing()
            else:
                await survivor.hush()
            print(line.decode().strip(), flush=True)
        await survivor.hush()
        await stack.aclose()


if __name__ == "__main__":
    uvloop.run(main())
