"""What readers of topics were given, a line each, and where their processes began.

A line is written before the next event is taken, so journals tell the truth after SIGKILL, too.
They are also all that an application has to keep: the last event of a topic is its checkpoint.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from shoal.node import Event

BEGIN = b"begin"
NOTHING = "-"


class Given(NamedTuple):
    """A reader was given an event; names are bytes of CIDs."""

    topic: int
    event: int
    id: bytes
    parent: bytes | None
    gap: bool
    time_ns: int


class Journal:
    """Of one node, over all of its lives."""

    def __init__(self, path: Path) -> None:
        self.last: dict[int, bytes] = {}
        """By topic, the checkpoint."""
        self.life = 1
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        lines, size = _lines(path, 0)
        os.ftruncate(self._file, size)  # a line without its end was never written
        for line in lines:
            if line == BEGIN:
                self.life += 1
            else:
                given = _parse(line)
                self.last[given.topic] = given.id
        os.write(self._file, BEGIN + b"\n")

    def write(self, topic: int, number: int, event: Event, now_ns: int) -> None:
        """The reader has it."""
        parent = event.descriptor.parent
        follows = NOTHING if parent is None else parent.hex()
        line = f"{topic} {number} {event.id.hex()} {follows} {event.gap_before:d} {now_ns}\n"
        os.write(self._file, line.encode())
        self.last[topic] = event.id


class Tail:
    """What is new in a journal, for whoever watches."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0

    def read(self) -> list[Given | None]:
        """In order; None where a life begins."""
        if not self._path.exists():
            return []
        lines, self._read_bytes = _lines(self._path, self._read_bytes)
        return [None if line == BEGIN else _parse(line) for line in lines]


def _lines(path: Path, begin: int) -> tuple[list[bytes], int]:
    """Whole lines from there on, and where they end."""
    with path.open("rb") as file:
        file.seek(begin)
        text = file.read()
    end = text.rfind(b"\n") + 1
    return text[:end].splitlines(), begin + end


def _parse(line: bytes) -> Given:
    topic, number, id, parent, gap, time_ns = line.decode().split()
    follows = None if parent == NOTHING else bytes.fromhex(parent)
    return Given(int(topic), int(number), bytes.fromhex(id), follows, gap == "1", int(time_ns))
