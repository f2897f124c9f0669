"""What the publisher says it published and each subscriber says it got: one line a message."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import TracebackType
from typing import Self

from shoal.base.ids import MessageId

FLUSH_LINES = 256


class Journal:
    """An append-only text file: timestamp, sequence, chain, digest of the content."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self._lines = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._file.close()

    def write(self, id: MessageId, content: str | bytes) -> None:
        """One message."""
        data = content.encode() if isinstance(content, str) else content
        digest = hashlib.blake2b(data, digest_size=8).hexdigest()
        self.note(f"{id.timestamp_ms} {id.sequence} {id.chain} {digest}")

    def note(self, line: str) -> None:
        """Anything else that fits a line."""
        self._file.write(line + "\n")
        self._lines += 1
        if self._lines % FLUSH_LINES == 0:
            self._file.flush()


def read_journal(path: Path) -> list[str]:
    """The lines of a journal; a last line without its end was cut off by a crash."""
    text = path.read_text()
    return text[: text.rfind("\n") + 1].splitlines()
