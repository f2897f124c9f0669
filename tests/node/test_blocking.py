"""The API without async: it waits, it can be interrupted, and it always ends."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

import shoal
from shoal.base.errors import UsageError
from shoal.config.network_file import NetworkFile
from shoal.config.sections import NodeSection, PeerEntry, TrackerSection
from shoal.node.blocking import Items, LoopThread

DEAD = NetworkFile(trackers=(PeerEntry("0x" + "ab" * 20, ("ws://127.0.0.1:9",)),))
HANG_S = 30  # whatever takes longer hangs


@pytest.fixture
def network() -> Iterator[NetworkFile]:
    """Of a tracker that runs."""
    with shoal.connect(NetworkFile(tracker=TrackerSection())) as tracker:
        running = tracker.node
        yield NetworkFile(trackers=(PeerEntry(f"0x{running.id.hex()}", running.addresses),))


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before]
    assert [thread.name for thread in left if thread.name == "shoal"] == []


@pytest.mark.parametrize("ordered", [True, False])
def test_messages_come_in_a_loop_that_ends_with_silence(
    network: NetworkFile, ordered: bool
) -> None:
    with shoal.connect(network) as one, shoal.connect(network) as two:
        stream = one.create_stream("/x")
        with two.open_stream(stream.id).subscribe(ordered=ordered, timeout=0.3) as messages:
            assert list(messages) == []  # nothing yet
            sent = [stream.publish({"number": number}) for number in range(3)]
            assert [message.id for message in messages] == sent
            # A wait that ended has lost nothing.
            stream.publish("one more")
            assert messages.next(HANG_S).content == "one more"
            with pytest.raises(TimeoutError):
                messages.next(0.05)
        assert repr(stream) == f"Stream({stream.id!r})"


def test_it_works_where_a_loop_runs_already(network: NetworkFile) -> None:
    async def cell() -> object:
        """As a notebook runs it."""
        with shoal.connect(network) as node:
            stream = node.create_stream("/x")
            with stream.subscribe() as messages:
                stream.publish(1)
                return next(messages).content

    assert asyncio.run(cell()) == 1


def test_without_with_it_is_closed_by_hand(network: NetworkFile) -> None:
    node = shoal.connect(network)
    stream = node.create_stream("/x")
    messages = stream.subscribe()
    node.close()
    node.close()
    messages.close()
    with pytest.raises(UsageError, match="closed: connect again"):
        stream.publish(1)
    with pytest.raises(UsageError, match="closed: connect again"):
        next(messages)


def test_closing_ends_whoever_waits(network: NetworkFile) -> None:
    node = shoal.connect(network)
    messages = node.create_stream("/x").subscribe()
    ended: list[object] = []
    waiting = threading.Thread(target=lambda: ended.extend(messages))
    waiting.start()
    node.close()
    waiting.join(HANG_S)
    assert not waiting.is_alive()
    assert ended == []


def test_what_goes_wrong_is_raised_here() -> None:
    with shoal.connect(NetworkFile()) as node:
        with pytest.raises(UsageError, match=r"add \[\[trackers\]\]"):
            node.create_stream("/x").publish(1)
        with pytest.raises(UsageError, match=r"add \[dht\]"):
            node.create_topic("news")
        with pytest.raises(UsageError, match=r"add \[search\]"):
            node.search("x")
    with pytest.raises(UsageError, match=r"no network file missing\.toml"):
        shoal.connect("missing.toml")
    with shoal.connect(NetworkFile()) as node:
        taken = NodeSection(listen=node.node.addresses)
        with pytest.raises(UsageError, match="cannot listen"):
            shoal.connect(NetworkFile(node=taken))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """As in a terminal: whoever is started in the background of a script ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_the_wait_for_a_tracker_that_is_gone() -> None:
    node = shoal.connect(DEAD)
    stream = node.create_stream("/x")
    here = threading.get_ident()
    interrupt = threading.Timer(0.2, lambda: signal.pthread_kill(here, signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        stream.publish(1)
    closing = threading.Thread(target=node.close)
    closing.start()
    closing.join(HANG_S)
    assert not closing.is_alive()


def test_it_does_not_wait_for_itself() -> None:
    with shoal.connect(NetworkFile()) as node:

        async def inside() -> None:
            node.create_stream("/x")

        with pytest.raises(UsageError, match="use the async API here"):
            node._thread.call(inside())


def test_what_was_read_to_its_end_is_closed_without_with() -> None:
    left = []

    @asynccontextmanager
    async def two() -> AsyncIterator[AsyncIterator[int]]:
        async def numbers() -> AsyncIterator[int]:
            yield 1
            yield 2

        yield numbers()
        left.append(True)

    thread = LoopThread()
    try:
        items = Items(thread, two(), None)
        assert list(items) == [1, 2]
        assert left == [True]
        assert list(items) == []
        items.close()
    finally:
        thread.close()
