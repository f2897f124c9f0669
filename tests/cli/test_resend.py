"""`shoal stream resend`: what it says of messages that are not there."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from shoal.base.ids import MessageId, StreamId, node_id
from shoal.node import Message, Stream
from shoal.node.streams.history import Completeness, HistoryRead
from shoal.node.streams.message import LOST, Gap
from shoal.protocols.streams.commands import Unheard
from tests.cli.test_app import ends

STREAM = "0x" + "ab" * 20 + "/vehicles"
ALICE = node_id(b"a" * 20)


async def some(count: int, history: Completeness) -> AsyncGenerator[Message]:
    for number in range(count):
        id = MessageId(StreamId(STREAM), 0, 1_000 + number, 0, ALICE, "c")
        yield Message(id, number, 0, 0, Gap(None, LOST) if number == 1 else None)
    history.over = True


def reads(monkeypatch: pytest.MonkeyPatch, folder: Path, count: int, *unheard: Unheard) -> None:
    """Storage has so many messages, and there are nodes that were not heard."""

    def read(self: Stream, *_: Any, **options: Any) -> HistoryRead:
        history = Completeness(self.id)
        history.lacks(unheard)
        return HistoryRead(some(count, history), history)

    monkeypatch.setattr(Stream, "read", read)
    monkeypatch.chdir(folder)
    (folder / "shoal.toml").write_text("[tracker]\n")


@pytest.fixture
def holed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage lacks a message before the second one."""
    reads(monkeypatch, tmp_path, 3)


@pytest.mark.usefixtures("holed")
def test_a_gap_is_told_in_its_place_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("stream", "resend", STREAM) == 0
    printed = capsys.readouterr()
    assert [line[-1] for line in printed.out.splitlines()] == ["0", "1", "2"]
    assert printed.err.splitlines() == [
        "messages of 0x61616161 are missing here",
        f"3 messages of {STREAM}, with 1 gap",
    ]


@pytest.mark.usefixtures("holed")
def test_for_programs_a_gap_is_in_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("stream", "resend", STREAM, "--json") == 0
    printed = capsys.readouterr()
    gaps = [json.loads(line)["gap_before"] for line in printed.out.splitlines()]
    assert gaps == [None, {"count": None, "reason": "lost"}, None]
    assert printed.err.splitlines() == [f"3 messages of {STREAM}, with 1 gap"]


@pytest.mark.parametrize("count", [0, 3])
def test_a_read_that_may_lack_some_is_no_success(
    count: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    reads(monkeypatch, tmp_path, count, Unheard(ALICE, 1_700_000_000_000, "no-answer"))
    assert ends("stream", "resend", STREAM) == 1
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == count, "what was found is printed"
    assert "the history is incomplete" in printed.err
    assert "0x6161616161616161616161616161616161616161 (no-answer)" in printed.err
    assert "last compared with the others at 2023-11-14T22:13:20" in printed.err
