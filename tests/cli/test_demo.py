"""The parts of the demo: journals, the checker that trusts nobody, and the sums."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.base.ids import MessageId, NodeId, StreamId
from shoal.cli.demo.checker import PUBLISHED, Verdict, compare
from shoal.cli.demo.journal import Journal, read_journal
from shoal.cli.demo.protocol import Figures
from shoal.cli.demo.settings import DemoSettings
from shoal.cli.demo.summary import degrees_of, snapshot_of, summarise
from shoal.cli.demo.worker import _content, _rounded
from tests.cli.test_app import ends

MESSAGES, SUBSCRIBERS = 20, 3


def message(number: int) -> tuple[MessageId, str]:
    id = MessageId(StreamId("s"), 0, 1000 + number // 3, number % 3, NodeId(bytes(20)), "c")
    return id, f"content {number}"


def write(path: Path, messages: list[tuple[MessageId, str]]) -> None:
    with Journal(path) as journal:
        for id, content in messages:
            journal.write(id, content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The journals of a demo in which all went well."""
    everything = [message(number) for number in range(MESSAGES)]
    write(tmp_path / PUBLISHED, everything)
    for number in range(SUBSCRIBERS):
        write(tmp_path / f"received-{number:03}.journal", everything)
    return tmp_path


def subscriber(folder: Path) -> Path:
    return folder / "received-001.journal"


def check(folder: Path) -> tuple[int, dict[str, Any]]:
    """The verdict of the process."""
    command = [sys.executable, "-m", "shoal.cli.demo.checker", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    verdict: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, verdict


def test_all_is_well(folder: Path) -> None:
    code, verdict = check(folder)
    assert code == 0
    assert verdict == {
        "published": MESSAGES,
        "subscribers": SUBSCRIBERS,
        "expected": MESSAGES * SUBSCRIBERS,
        "delivered": MESSAGES * SUBSCRIBERS,
        "lost": 0,
        "double": 0,
        "invented": 0,
    }


def test_a_message_that_one_subscriber_lost_is_seen(folder: Path) -> None:
    write(subscriber(folder), [message(n) for n in range(MESSAGES) if n != 7])
    code, verdict = check(folder)
    assert code == 1
    assert (verdict["lost"], verdict["double"], verdict["invented"]) == (1, 0, 0)
    assert verdict["delivered"] == MESSAGES * SUBSCRIBERS - 1


@pytest.mark.parametrize(
    ("numbers", "lost", "double", "invented"),
    [
        ([*range(MESSAGES), 4], 0, 1, 0),
        ([*range(MESSAGES), 4, 4, 5], 0, 3, 0),
        ([*range(MESSAGES), MESSAGES], 0, 0, 1),
        ([*range(1, MESSAGES + 1)], 1, 0, 1),
        ([], MESSAGES, 0, 0),
    ],
)
def test_what_came_twice_or_from_nowhere_is_seen(
    folder: Path, numbers: list[int], lost: int, double: int, invented: int
) -> None:
    write(subscriber(folder), [message(number) for number in numbers])
    verdict = compare(folder)
    assert (verdict.lost, verdict.double, verdict.invented) == (lost, double, invented)
    assert not verdict.good


def test_the_order_in_which_messages_came_is_no_matter(folder: Path) -> None:
    write(subscriber(folder), [message(number) for number in reversed(range(MESSAGES))])
    assert compare(folder).good


def test_other_content_under_the_same_id_is_lost_and_invented(folder: Path) -> None:
    changed = [message(number) for number in range(MESSAGES)]
    changed[5] = (changed[5][0], "something else")
    write(subscriber(folder), changed)
    verdict = compare(folder)
    assert (verdict.lost, verdict.invented) == (1, 1)


def test_a_publisher_that_repeats_itself_is_seen(folder: Path) -> None:
    write(folder / PUBLISHED, [message(number) for number in [*range(MESSAGES), 3]])
    assert compare(folder).double == 1


def test_without_a_publisher_everything_is_invented(folder: Path) -> None:
    (folder / PUBLISHED).unlink()
    verdict = compare(folder)
    assert verdict.invented == MESSAGES * SUBSCRIBERS
    for number in range(SUBSCRIBERS):
        write(folder / f"received-{number:03}.journal", [])
    assert compare(folder) == Verdict(0, SUBSCRIBERS, 0, 0, 0, 0, 0)


def test_a_line_that_a_crash_cut_off_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text("1 0 c 00\n2 0 c 11\n3 0 c")
    assert read_journal(path) == ["1 0 c 00", "2 0 c 11"]
    path.write_text("3 0 c")
    assert read_journal(path) == []


# Sums


def figures(**changes: Any) -> Figures:
    known: dict[str, Any] = {
        "published": 0,
        "received": 30,
        "delivered": 30,
        "duplicates": 60,
        "degrees": (4, 4),
        "ages_tenth_ms": {10: 15, 50: 15},
        "publishing": False,
        "cpu_seconds": 1.0,
    }
    return Figures(**{**known, **changes})


def test_sums_are_over_all_workers() -> None:
    known = [
        figures(published=10, ages_tenth_ms={10: 29, 990: 1}),
        figures(degrees=(3,), received=60, delivered=60, duplicates=120),
    ]
    settings = DemoSettings(nodes=3, processes=2, seconds=2.0)
    snapshot = snapshot_of(known, settings, 1.5)
    assert (snapshot.published, snapshot.delivered, snapshot.received) == (10, 90, 90)
    assert snapshot.duplicates == 180
    assert snapshot.degrees == degrees_of(known) == (4, 4, 3)
    assert (snapshot.delay_ms.p50, snapshot.delay_ms.p99) == (1.0, 99.0)
    summary = summarise(Verdict(10, 3, 30, 30, 0, 0, 0), known, settings, 2.5, (4, 4, 3))
    assert (summary.expected, summary.delivered, summary.lost) == (20, 20, 0)
    assert summary.duplicates_per_message == 2.0
    assert summary.rate == 5.0
    assert summary.good
    lost = summarise(Verdict(10, 3, 30, 29, 1, 0, 0), known, settings, 2.5, (4, 4, 3))
    assert (lost.expected, lost.delivered, lost.lost, lost.good) == (20, 19, 1, False)


def test_a_demo_without_a_message_has_sums_too() -> None:
    nothing = figures(received=0, delivered=0, duplicates=0, ages_tenth_ms={})
    summary = summarise(Verdict(0, 2, 0, 0, 0, 0, 0), [nothing], DemoSettings(), 0.0, ())
    assert summary.duplicates_per_message == 0
    assert summary.delay_ms.p50 is None
    assert summary.rate == 0


def test_messages_have_their_size_and_differ() -> None:
    contents = [_content(number, 308) for number in (0, 1, 99_999, 12_345_678)]
    assert {len(content) for content in contents} == {308}
    assert len(set(contents)) == 4
    assert json.loads(_content(7, 110))["number"] == 7


def test_ages_are_rounded_so_that_their_table_stays_small() -> None:
    assert [_rounded(age) for age in (0, 999, 1004, 9999, 10_099)] == [0, 999, 1000, 9990, 10_000]
    assert len({_rounded(age) for age in range(0, 5_000_000, 7)}) < 10_000
    assert _rounded(10**12) == 600_000


# The command


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--nodes", "2", "--processes", "3"], "give each one node at least"),
        (["--nodes", "1"], "--nodes"),
        (["--size", "10"], "--size"),
        (["--seconds", "0"], "--seconds"),
    ],
)
def test_misuse_is_explained(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends("demo", *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert complaint in printed.err


def test_the_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("demo", "--help") == 0
    assert "Example: shoal demo" in capsys.readouterr().out
