"""Progress on stderr: a bar on a terminal, else a line now and then; nothing for a quick run."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

QUICK_S = 2.0  # whoever waits this long does not wonder yet
REFRESH_S = 0.2
PLAIN_INTERVAL_S = 10.0


class SoFar(Protocol):
    """How far something is: a run, a sweep, a report."""

    @property
    def said(self) -> str:
        """In words."""
        ...

    @property
    def fraction(self) -> float:
        """The part that is done; 0 as long as nothing tells."""
        ...


class ProgressLine:
    """Shows how far a run is, from its second second on."""

    def __init__(self, title: str, stream: TextIO | None = None) -> None:
        self._title = title
        self._stream = sys.stderr if stream is None else stream
        self._begin_s = time.monotonic()
        self._due_s = QUICK_S
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def pause(self) -> None:
        """Make room for a line on the same terminal; the bar comes back by itself."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def update(self, progress: SoFar) -> None:
        """Called often; shows something seldom."""
        spent_s = time.monotonic() - self._begin_s
        if spent_s < self._due_s:
            return
        fraction = progress.fraction
        text = f"{self._title}: {progress.said}"
        if fraction > 0:
            left_s = spent_s * (1 - fraction) / fraction
            text += f", about {show_duration(left_s)} left"
        if self._stream.isatty():
            self._due_s = spent_s + REFRESH_S
            self._show_bar(text, fraction)
        else:
            self._due_s = spent_s + PLAIN_INTERVAL_S
            print(text, file=self._stream, flush=True)

    def _show_bar(self, text: str, fraction: float) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            self._bar = Progress(
                BarColumn(20),
                TextColumn("{task.description}", markup=False),
                console=Console(file=self._stream),
                auto_refresh=False,
                transient=True,
            )
            self._bar.add_task(text, total=1.0)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=fraction, description=text, refresh=True)


def show_duration(seconds: float) -> str:
    """Short, for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


# For what may take long without a word from anybody: who waits is told, from the second second
# on.

PROGRESS_S = 5.0


class NowAndThen:
    """Whether it is time to say how far something is."""

    def __init__(self) -> None:
        self._due_s = time.monotonic() + QUICK_S

    @property
    def due(self) -> bool:
        """Asked often, true seldom."""
        if time.monotonic() < self._due_s:
            return False
        self._due_s = time.monotonic() + PROGRESS_S
        return True


@asynccontextmanager
async def waiting(what: str) -> AsyncIterator[None]:
    """Say what is waited for, now and then, until it is there."""
    telling = asyncio.get_running_loop().create_task(_tell(what))
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def _tell(what: str) -> None:
    waited_s = QUICK_S
    await asyncio.sleep(QUICK_S)
    while True:
        print(f"waiting {what} ({waited_s:.0f} s)", file=sys.stderr, flush=True)
        await asyncio.sleep(PROGRESS_S)
        waited_s += PROGRESS_S
