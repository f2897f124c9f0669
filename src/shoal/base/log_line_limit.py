"""Log lines that others cause: so many a minute of each kind, and then only their number.

A peer, a client or a broker can repeat a fault as often as it likes. The first lines of a kind say
what happened; the rest of a minute is one line, "... and 230 more in the last minute". What others
wrote is escaped and cut short, so that no line of theirs looks like one of ours.
"""

from __future__ import annotations

import logging
from weakref import WeakSet

LINES_MAX = 10
"""Of one kind in a minute: enough to see whether it is one peer or many."""
MINUTE_S = 60.0
KINDS_MAX = 256
"""Kinds are texts of ours and of libraries, of which there are fewer; more of them are one kind."""
LINE_CHARS_MAX = 1_000
"""Of a line: a text of a peer may have half a megabyte."""

_SUMMARY = "shoal_summary"
_ANY_OTHER = ("", "")


class _Kind:
    """Lines of one kind in one minute."""

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.count = 0
        self.last: logging.LogRecord | None = None
        """Of those that were left out."""

    def tell(self) -> None:
        """Write how many were left out."""
        if self.last is None:
            return
        logging.getLogger(self.last.name).log(
            self.last.levelno,
            "... and %d more in the last minute, the last: %s",
            self.count - LINES_MAX,
            self.last.msg,
            extra={_SUMMARY: True},
        )


class LogLimit(logging.Filter):
    """Lets the first lines of each kind through a logger. The kind of a line is its text without
    its figures, and the time that of the line."""

    def __init__(self, *, escape: bool = True) -> None:
        """Without escape, a line may have several lines, as those that libraries write."""
        super().__init__()
        self._escape = escape
        self._kinds: dict[tuple[str, str], _Kind] = {}
        _limits.add(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written."""
        if getattr(record, _SUMMARY, False):
            return True
        self.settle(record.created)
        key = (record.name, str(record.msg).partition("\n")[0])
        if key not in self._kinds and len(self._kinds) >= KINDS_MAX:
            key = _ANY_OTHER
        kind = self._kinds.setdefault(key, _Kind(record.created))
        kind.count += 1
        if self._escape:
            record.msg, record.args = _escaped(_text_of(record)), None
        if kind.count <= LINES_MAX:
            return True
        # Nothing else of it stays in memory: no frames of a traceback, no connections.
        record.msg, record.args, record.exc_info = _text_of(record).partition("\n")[0], None, None
        kind.last = record
        return False

    def settle(self, now_s: float) -> None:
        """Write how many were left out in minutes that are over. A clock that was set back ends
        them as well."""
        for key, kind in list(self._kinds.items()):
            if not 0 <= now_s - kind.began_s < MINUTE_S and self._kinds.pop(key, None) is kind:
                kind.tell()


_limits: WeakSet[LogLimit] = WeakSet()


def log_of_others(name: str) -> logging.Logger:
    """The logger for lines that others cause, below the one of that name."""
    log = logging.getLogger(f"{name}.others")
    if not log.filters:
        log.addFilter(LogLimit())
    return log


def limit_library_logs(*names: str) -> None:
    """Have the same bound for loggers of libraries, which write what connections do to them."""
    for name in names:
        log = logging.getLogger(name)
        if not any(isinstance(each, LogLimit) for each in log.filters):
            log.addFilter(LogLimit(escape=False))


def settle_logs(now_s: float) -> None:
    """Write how many lines were left out in minutes that are over; called now and then."""
    for limit in list(_limits):
        limit.settle(now_s)


def _text_of(record: logging.LogRecord) -> str:
    """The text of a line; one that cannot be put together must not end what wrote it."""
    try:
        return record.getMessage()
    except Exception:
        return str(record.msg)


def _escaped(text: str) -> str:
    cut = text if len(text) <= LINE_CHARS_MAX else f"{text[:LINE_CHARS_MAX]}..."
    if cut.isprintable():
        return cut
    return "".join([c if c.isprintable() else repr(c)[1:-1] for c in cut])
