"""Many at once, or one alone: lmdb must not move its map under a running transaction."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Transactions pass together; whoever moves the map or closes it waits for them, and passes
    before those that come later. Not to be entered twice by one thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._alone = False

    @contextmanager
    def together(self) -> Iterator[None]:
        """Inside with others of this kind."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        """Go inside with others of this kind: `leave` must follow, whatever happens."""
        with self._changed:
            while self._alone:
                self._changed.wait()
            self._inside += 1

    def leave(self) -> None:
        """Inside no more."""
        with self._changed:
            self._inside -= 1
            if not self._inside:
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside with nobody else."""
        with self._changed:
            while self._alone:
                self._changed.wait()
            self._alone = True
            while self._inside:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()
