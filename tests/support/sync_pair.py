"""Storage nodes that follow each other, hand in hand, and lies between them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.base.units import S_NS
from shoal.protocols.streams.history.anti_entropy import FollowStream
from shoal.protocols.streams.history.messages import SYNC_QUESTIONS
from shoal.protocols.streams.history.storage_node import KeepMessage
from shoal.storage.config import DEFAULTS
from shoal.storage.message_store.store_types import Row
from tests.support.storage_host import StorageHost, message
from tests.support.streams import ALICE, BOB, STREAM

assert DEFAULTS.page_rows_max >= 1000  # `Pair.rows` reads one page

Lies = Callable[[Any, Any], Any]  # question, honest answer -> what is said


class Pair:
    """Storage nodes that hear each other; what one says may be changed on the way."""

    def __init__(self, folder: Path, names: tuple[Any, ...] = (ALICE, BOB), **settings: Any):
        self.hosts = {
            name: StorageHost(name, folder / name.hex(), peers=names, **settings) for name in names
        }
        self.lies: dict[Any, Lies] = {}
        self.asked: list[Any] = []
        self._questions: dict[tuple[Any, Any, int], Any] = {}
        for host in self.hosts.values():
            host.exchange = self._exchange
            host.command(host.sync, FollowStream(STREAM))

    def connect(self, a: Any, b: Any) -> None:
        for one, other in ((a, b), (b, a)):
            self.hosts[one].link_opened(other)

    def disconnect(self, a: Any, b: Any) -> None:
        for one, other in ((a, b), (b, a)):
            self.hosts[one].link_closed(other, "lost")

    def run(self, seconds: float = 10) -> None:
        """Let time pass; what is said arrives at once, what is slow is done at once."""
        for _ in range(int(seconds * 4)):
            for host in self.hosts.values():
                host.advance(S_NS // 4)
            while self._exchange():
                pass

    def _exchange(self) -> bool:
        moved = False
        for name, host in self.hosts.items():
            host.finish_all()
            for other, peer in self.hosts.items():
                for said in host.said(other):
                    moved = True
                    if isinstance(said, SYNC_QUESTIONS):
                        self.asked.append(said)
                        self._questions[name, other, said.request] = said
                    elif name in self.lies:
                        question = self._questions.get((other, name, said.request))
                        said = self.lies[name](question, said)
                    if said is not None:
                        peer.received(name, said)
        return moved

    def rows(self, at: Any, owner: Any, partition: int = 0) -> list[Row]:
        """A log as one node holds it."""
        store, log = self.hosts[at].store_below, self.hosts[owner].store_below.log
        head = store.heads(STREAM, partition).get(log)
        if head is None:
            return []
        return store.log_read(log, STREAM, partition, head.first - 1, 1000).rows

    def check(self) -> None:
        for host in self.hosts.values():
            host.store_below.check_invariants()
            host.sync.check_invariants()


def keep(host: StorageHost, *numbers: int, **names: Any) -> None:
    """A storage node hears these messages of a stream, and has them on disk."""
    for number in numbers:
        host.command(host.storage, KeepMessage(message(number, **names)))
    host.finish_all()
