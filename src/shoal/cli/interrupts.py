"""Ctrl-C: how a command ends by it; while Spark works, without a word of Spark or py4j."""

from __future__ import annotations

import logging
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn, Self

EXIT_STOPPED = 130  # as a shell has it for Ctrl-C


class Interrupts:
    """What becomes of SIGINT as long as this is open: a KeyboardInterrupt, told by nobody else."""

    def __enter__(self) -> Self:
        self._before = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, _interrupt)
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark", RuntimeWarning)
        return self

    def __exit__(self, *raised: object) -> None:
        self._warnings.__exit__(None, None, None)
        signal.signal(signal.SIGINT, self._before)
        logging.disable(logging.NOTSET)

    @contextmanager
    def while_spark_starts(self) -> Iterator[None]:
        """Spark takes the signal: its handler asks the JVM in the middle of another question, which
        ends in errors that are logged. Nothing is, while it has it, and then it is ours again."""
        logging.disable()
        yield
        signal.signal(signal.SIGINT, _interrupt)
        logging.disable(logging.NOTSET)


def was_interrupted(error: BaseException | None) -> bool:
    """Whether an error is Ctrl-C, or came of it: py4j tells the JVM, and may fail at that."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    # py4j tells the root logger what it was about to do, in thirty lines.
    logging.disable()
    raise KeyboardInterrupt
