"""The same API without async, for scripts and notebooks: `shoal.connect`.

with shoal.connect("shoal.toml") as node:
    stream = node.open_stream("/greetings")
    stream.publish("hello")
    with stream.subscribe(timeout=10) as messages:  # ends after ten seconds of silence
        for message in messages:
            print(message.content)

The node runs in a thread of its own. Every call waits for its result, and Ctrl-C ends the wait. For
what is not here, user connections and spaces, use the async API.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from shoal.base.errors import HistoryIncomplete, UsageError
from shoal.base.ids import MessageId, StreamId
from shoal.config.network_file import NetworkFile, Reloaded
from shoal.node.node import Node
from shoal.node.search.documents import PublishedDocument
from shoal.node.search.results import (
    CONFIDENCE_DEFAULT,
    WITHIN_S_DEFAULT,
    FoundDocument,
    Hit,
    Sighting,
)
from shoal.node.streams.history import EARLIEST, LATEST, HistoryRead, Missing, Start
from shoal.node.streams.message import Content, Key, Message
from shoal.node.streams.stream import Stream
from shoal.node.streams.subscription import Subscription
from shoal.node.topics.event import Event, PublishedEvent
from shoal.node.topics.topic import ANYONE, AnyCid, Peers, Topic
from shoal.protocols.search.documents.document import Life
from shoal.runtime.readiness import Readiness

T = TypeVar("T")


def connect(network: str | Path | NetworkFile = "shoal.toml") -> BlockingNode:
    """A node from a network file, which runs until it is closed: by `with`, or by `close()`."""
    return BlockingNode(network)


class Items(Generic[T]):
    """What comes, one after the other: iterate over it. Ends after `timeout` seconds in which
    nothing came, if there is one; what comes later is there for the next loop."""

    def __init__(
        self,
        thread: LoopThread,
        context: AbstractAsyncContextManager[AsyncIterator[T]],
        timeout: float | None,
    ) -> None:
        self.timeout = timeout
        self._thread = thread
        self._held = Held(thread, context)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            return self.next(self.timeout)
        except TimeoutError:
            raise StopIteration from None

    def next(self, timeout: float | None = None) -> T:
        """The next one; TimeoutError if none comes within so many seconds, StopIteration at the
        end."""
        try:
            return self._thread.call(_next(self._held.value), timeout)
        except StopAsyncIteration:
            self.close()  # a loop over all of it needs no `with`
            raise StopIteration from None

    def close(self) -> None:
        """Want no more."""
        self._held.close()


class Messages(Items[Message]):
    """Messages of a stream, and whether the history among them is all that there is."""

    @property
    def complete(self) -> bool:
        """Of a read: whether it has come to its end, and is all that there is. Of a subscription:
        whether that is so of the history before what is live."""
        return self._history.complete

    @property
    def missing(self) -> tuple[Missing, ...]:
        """The storage nodes that may have more."""
        return self._history.missing

    @property
    def problem(self) -> str | None:
        """For people: why it is not complete; None if it is, or is still being read."""
        return self._history.problem

    def raise_if_incomplete(self) -> None:
        """Raise HistoryIncomplete unless `complete`."""
        if not self.complete:
            raise HistoryIncomplete(self.problem or "the history was not read to its end")

    @property
    def _history(self) -> HistoryRead | Subscription:
        history = self._held.value
        assert isinstance(history, HistoryRead | Subscription)  # as BlockingStream makes it
        return history


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)


@asynccontextmanager
async def _closing(items: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """What is read; whoever is in the middle of it is told that nobody wants the rest."""
    try:
        yield items
    finally:
        close = getattr(items, "aclose", None)  # of a generator
        if close is not None:
            await close()


class BlockingNode:
    """A node whose calls wait. Made by shoal.connect."""

    def __init__(self, network: str | Path | NetworkFile) -> None:
        self._thread = LoopThread()
        try:
            self._held = Held(self._thread, Node.open(network))
        except BaseException:
            self._thread.close()
            raise
        self.node = self._held.value
        """The async node, for its attributes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the network. Never hangs; closing twice is fine."""
        try:
            self._held.close()
        finally:
            self._thread.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.call(work)

    @property
    def readiness(self) -> Readiness:
        """As Node.readiness."""

        async def look() -> Readiness:
            return self.node.readiness

        return self._wait(look())

    def reload(self, network: str | Path | NetworkFile = "shoal.toml") -> Reloaded:
        """As Node.reload."""
        return self._wait(self.node.reload(network))

    # Streams

    def create_stream(self, path: str, *, public: bool = False) -> BlockingStream:
        """As Node.create_stream."""
        return BlockingStream(
            self._thread, self._wait(self.node.create_stream(path, public=public))
        )

    def open_stream(self, id: str) -> BlockingStream:
        """As Node.open_stream."""
        return BlockingStream(self._thread, self._wait(self.node.open_stream(id)))

    # Topics

    def create_topic(
        self, name: str, *, publishers: Peers | None = None, public: bool = False
    ) -> BlockingTopic:
        """As Node.create_topic; others may ask."""
        made = self.node.create_topic(name, publishers=publishers, requests=ANYONE, public=public)
        return BlockingTopic(self._thread, self._wait(made))

    def topic(self, cid: AnyCid) -> BlockingTopic:
        """As Node.topic."""
        return BlockingTopic(self._thread, self._wait(self.node.topic(cid)))

    # Search

    def put(
        self,
        content: Mapping[str, Any],
        *,
        kind: Life = "managed",
        name: str | None = None,
        life: timedelta | float | None = None,
    ) -> PublishedDocument:
        """As Node.put."""
        return self._wait(self.node.put(content, kind=kind, name=name, life=life))

    def delete(self, name: str) -> PublishedDocument:
        """As Node.delete."""
        return self._wait(self.node.delete(name))

    def get(self, name: str, *, owner: str | None = None) -> FoundDocument:
        """As Node.get."""
        return self._wait(self.node.get(name, owner=owner))

    def search(
        self,
        query: str,
        *,
        confidence: float = CONFIDENCE_DEFAULT,
        limit: int | None = None,
        within: float = WITHIN_S_DEFAULT,
    ) -> list[Hit]:
        """As Node.search, when it is over."""

        async def found() -> list[Hit]:
            search = self.node.search(query, confidence=confidence, limit=limit, within=within)
            async with search:
                return [hit async for hit in search]

        return self._wait(found())

    def watch(self, query: str, *, timeout: float | None = None) -> Items[Sighting]:
        """As Node.watch."""
        return Items(self._thread, self.node.watch(query), timeout)


class BlockingStream:
    """A stream whose calls wait. Made by BlockingNode."""

    def __init__(self, thread: LoopThread, stream: Stream) -> None:
        self.stream = stream
        """The async one."""
        self._thread = thread

    def __repr__(self) -> str:
        return repr(self.stream)

    @property
    def id(self) -> StreamId:
        return self.stream.id

    def publish(
        self,
        content: Content,
        *,
        key: Key | None = None,
        partition: int | None = None,
        durable: bool | int = False,
    ) -> MessageId:
        """As Stream.publish."""
        return self._thread.call(
            self.stream.publish(content, key=key, partition=partition, durable=durable)
        )

    def retry(self, message: MessageId) -> MessageId:
        """As Stream.retry."""
        return self._thread.call(self.stream.retry(message))

    def subscribe(
        self,
        start: Start = LATEST,
        *,
        partitions: Iterable[int] | int | None = None,
        ordered: bool = True,
        timeout: float | None = None,
    ) -> Messages:
        """As Stream.subscribe; iteration ends after `timeout` seconds of silence, if given."""
        messages = self.stream.subscribe(start, partitions=partitions, ordered=ordered)
        return Messages(self._thread, messages, timeout)

    def read(
        self,
        start: Start = EARLIEST,
        end: datetime | None = None,
        *,
        publisher: str | None = None,
        partitions: Iterable[int] | int | None = None,
    ) -> Messages:
        """As Stream.read: after the loop `complete` says whether that was all."""
        messages = self.stream.read(start, end, publisher=publisher, partitions=partitions)
        return Messages(self._thread, _closing(messages), None)


class BlockingTopic:
    """A topic whose calls wait. Made by BlockingNode."""

    def __init__(self, thread: LoopThread, topic: Topic) -> None:
        self.topic = topic
        """The async one."""
        self._thread = thread

    def __repr__(self) -> str:
        return repr(self.topic)

    @property
    def cid(self) -> str:
        return self.topic.cid

    def publish(self, payload: bytes, *, replicas: int = 0) -> PublishedEvent:
        """As Topic.publish, and waits until so many other nodes keep the event."""

        async def published() -> PublishedEvent:
            event = await self.topic.publish(payload)
            if replicas:
                await event.stored(replicas)
            return event

        return self._thread.call(published())

    def subscribe(self, start: AnyCid = LATEST, *, timeout: float | None = None) -> Items[Event]:
        """As Topic.subscribe; iteration ends after `timeout` seconds of silence, if given."""
        return Items(self._thread, self.topic.subscribe(start), timeout)

    def read(self, end: AnyCid | None = None, *, limit: int | None = None) -> Items[Event]:
        """As Topic.read: the newest first."""
        return Items(self._thread, _closing(self.topic.read(end, limit=limit)), None)


# An event loop in a thread of its own, for callers that have none, or whose own is busy: a
# notebook runs each cell inside of one.


CLOSE_S = 10.0  # whatever takes longer to end is given up


class LoopThread:
    """Runs coroutines, for one thread that waits or for several."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        # A program that ends without `close` ends all the same.
        self._thread = threading.Thread(target=self._run, name="shoal", daemon=True)
        self._thread.start()

    @property
    def runs(self) -> bool:
        """Whether it is not closed."""
        return self._thread.is_alive()

    def call(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """The result; TimeoutError if it takes longer. Whatever ends the wait, Ctrl-C as well, ends
        the work."""
        if not self.runs:
            work.close()
            raise UsageError("this node is closed: connect again")
        if threading.current_thread() is self._thread:
            work.close()
            raise UsageError("this would wait for itself: use the async API here")
        future = asyncio.run_coroutine_threadsafe(_within(work, timeout), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the loop and everything in it; never waits for long. Closing twice is fine."""
        if self.runs:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=CLOSE_S / 2))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()


class Held(Generic[T]):
    """An async context manager that is entered and left by one task of a loop, as it must be."""

    def __init__(self, thread: LoopThread, context: AbstractAsyncContextManager[T]) -> None:
        """Enters it; raises what that raises."""
        self._thread = thread
        self._leave = asyncio.Event()
        self._entered: Future[T] = Future()
        self._task: asyncio.Task[None] | None = None
        self.value = thread.call(self._enter(context))

    async def _enter(self, context: AbstractAsyncContextManager[T]) -> T:
        self._task = asyncio.get_running_loop().create_task(self._live(context))
        try:
            return await asyncio.wrap_future(self._entered)
        except BaseException:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CLOSE_S)
            raise

    async def _live(self, context: AbstractAsyncContextManager[T]) -> None:
        try:
            async with context as value:
                self._entered.set_result(value)
                await self._leave.wait()
        except BaseException as error:
            if self._entered.done():
                raise
            self._entered.set_exception(error)

    def close(self) -> None:
        """Leave it; what takes too long is cancelled. Closing twice is fine."""
        task, self._task = self._task, None
        if task is not None and self._thread.runs:
            self._thread.call(self._end(task))

    async def _end(self, task: asyncio.Task[None]) -> None:
        self._leave.set()
        await asyncio.wait([task], timeout=CLOSE_S)
        task.cancel()
        await asyncio.wait([task], timeout=CLOSE_S)
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error


async def _within(work: Coroutine[Any, Any, T], timeout: float | None) -> T:
    async with asyncio.timeout(timeout):
        return await work


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
