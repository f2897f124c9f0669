"""`shoal stream resend`: what it says of messages that are not there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shoal.base.ids import MessageId, StreamId, node_id
from shoal.node import Message, Stream
from shoal.node.messages import LOST, Gap
from tests.cli.test_app import ends

STREAM = "0x" + "ab" * 20 + "/vehicles"
ALICE = node_id(b"a" * 20)


@pytest.fixture
def holed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage lacks a message before the second one."""

    async def read(self: Stream, *_: Any, **options: Any) -> AsyncIterator[Message]:
        for number in range(3):
            id = MessageId(StreamId(STREAM), 0, 1_000 + number, 0, ALICE, "c")
            yield Message(id, number, 0, 0, Gap(None, LOST) if number == 1 else None)

    monkeypatch.setattr(Stream, "read", read)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shoal.toml").write_text("[tracker]\n")


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
