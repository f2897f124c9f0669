"""Real `shoal` processes, whose output a test reads while they run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

PATIENCE_S = 60.0  # starting an interpreter on a machine with other things to do
SHOAL = (sys.executable, "-m", "shoal.cli")


class Running:
    """A process and what it has said so far. It is gone at the end of the context."""

    def __init__(
        self,
        *arguments: str,
        folder: Path | None = None,
        command: Sequence[str] = SHOAL,
        own_session: bool = False,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            [*command, *arguments],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=own_session,
            env={**os.environ, **(environment or {})},
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.out: list[str] = []
        self.err: list[str] = []
        self._readers = [
            threading.Thread(target=_read, args=(self.process.stdout, self.out)),
            threading.Thread(target=_read, args=(self.process.stderr, self.err)),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def say(self, text: str) -> None:
        """To its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def hang_up(self) -> None:
        """End its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Until something was said; a process that ends instead fails the test."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if self.process.poll() is not None:
                for reader in self._readers:
                    reader.join()
                if condition():
                    return
                raise AssertionError(f"it ended with {self.process.returncode}: {self.err}")
            if time.monotonic() > deadline:
                raise AssertionError(f"not in time; it said {self.out} and {self.err}")
            time.sleep(0.01)

    def end(self, with_signal: signal.Signals | None = None) -> int:
        """The exit code, after a signal if one is given."""
        if with_signal is not None:
            self.process.send_signal(with_signal)
        code = self.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join()
        return code


def run(
    *arguments: str,
    folder: Path | None = None,
    text: str = "",
    environment: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """A command from start to end."""
    return subprocess.run(
        [*SHOAL, *arguments],
        cwd=folder,
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, **(environment or {})},
    )


def children_of(pid: int) -> list[int]:
    """Processes that a process has started and that still run, and theirs."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parts = _stat(entry)
            if parts and int(parts[1]) == pid and parts[0] != "Z":
                found += [int(entry.name), *children_of(int(entry.name))]
    return found


def started_by(pid: int) -> list[int]:
    """Processes that a process has started, whichever of its threads did; not theirs."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):  # it has just ended
            found += map(int, (thread / "children").read_text().split())
    return found


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it is not a zombie."""
    parts = _stat(Path("/proc", str(pid)))
    return bool(parts) and parts[0] != "Z"


def _stat(process: Path) -> list[str]:
    """State and parent, and more."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _read(pipe: IO[str], lines: list[str]) -> None:
    lines.extend(line.rstrip("\n") for line in pipe)
