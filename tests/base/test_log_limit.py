"""Lines that others cause: the first of a minute are written, and the rest is counted."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import count

import pytest

from shoal.base.log_line_limit import (
    KINDS_MAX,
    LINES_MAX,
    limit_library_logs,
    log_of_others,
    settle_logs,
)

names = (f"shoal.test{number}" for number in count())


class Lines(logging.Handler):
    """What was written."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, list[str]]]:
    name, lines = next(names), Lines()
    logging.getLogger(name).addHandler(lines)
    yield log_of_others(name), lines.texts
    logging.getLogger(name).removeHandler(lines)


def say(log: logging.Logger, at_s: float, text: str, *values: object) -> None:
    """A line of a certain time."""
    record = log.makeRecord(log.name, logging.WARNING, __file__, 1, text, values, None)
    record.created = at_s
    log.handle(record)


def test_a_flood_is_ten_lines_and_a_number(log: tuple[logging.Logger, list[str]]) -> None:
    others, written = log
    for number in range(LINES_MAX + 230):
        say(others, 100 + number / 100, "peer %d knocked", number)
    assert written == [f"peer {number} knocked" for number in range(LINES_MAX)]
    written.clear()
    settle_logs(159.9)
    assert written == []
    settle_logs(160.0)
    assert written == ["... and 230 more in the last minute, the last: peer 239 knocked"]
    settle_logs(1e9)
    assert len(written) == 1, "told once"


def test_the_next_minute_begins_with_the_number(log: tuple[logging.Logger, list[str]]) -> None:
    others, written = log
    for _ in range(LINES_MAX + 1):
        say(others, 100, "x")
    written.clear()
    say(others, 161, "x")
    assert written == ["... and 1 more in the last minute, the last: x", "x"]


def test_kinds_do_not_hide_each_other_and_are_bounded(
    log: tuple[logging.Logger, list[str]],
) -> None:
    others, written = log
    for _ in range(LINES_MAX + 5):
        say(others, 100, "loud")
    say(others, 100, "rare")
    assert written[-1] == "rare"
    for number in range(10 * KINDS_MAX):
        say(others, 100, f"kind {number}")
    (limit,) = others.filters
    assert len(limit._kinds) == KINDS_MAX + 1  # type: ignore[union-attr]
    assert len(written) == LINES_MAX + 1 + KINDS_MAX - 2 + LINES_MAX


def test_a_clock_that_is_set_back_silences_nothing(
    log: tuple[logging.Logger, list[str]],
) -> None:
    others, written = log
    for at_s in (1_000, 10):
        for _ in range(LINES_MAX):
            say(others, at_s, "x")
    assert written == ["x"] * (2 * LINES_MAX)


def test_what_others_wrote_is_one_line_and_no_longer(
    log: tuple[logging.Logger, list[str]],
) -> None:
    others, written = log
    say(others, 1, "topic %s", "a\nERROR forged\x1b[2J\u2028" + "y" * 5_000)
    (line,) = written
    assert line.startswith(r"topic a\nERROR forged\x1b[2J\u2028yyy")
    assert len(line) < 1_100
    assert line.isprintable()


def test_libraries_write_lines_of_several_lines(caplog: pytest.LogCaptureFixture) -> None:
    name = next(names)
    for _ in range(2):
        limit_library_logs(name)
    for number in range(LINES_MAX + 5):
        logging.getLogger(name).error(f"a callback failed\ntransport {number}")
    assert caplog.messages[0] == "a callback failed\ntransport 0"
    assert len(caplog.messages) == LINES_MAX


def test_a_line_that_cannot_be_written_harms_nothing_but_itself(
    log: tuple[logging.Logger, list[str]],
) -> None:
    others, written = log
    for _ in range(LINES_MAX + 1):
        say(others, 1, "%d peers", "no number")
    assert written == ["%d peers"] * LINES_MAX
    settle_logs(100)
    assert written[-1] == "... and 1 more in the last minute, the last: %d peers"
