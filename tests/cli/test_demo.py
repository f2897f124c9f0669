"""The parts of the demo: journals, the checker that trusts nobody, and the sums."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from shoal.base.ids import MessageId, NodeId, StreamId
from shoal_city.demo.checker import (
    ALERTS,
    ALERTS_KEPT,
    ALERTS_RECEIVED,
    PUBLISHED,
    READINGS,
    AlertsVerdict,
    Journal,
    Verdict,
    compare,
    read_journal,
)
from shoal_city.demo.message_source import SHIFT_S, SPEED, fleet_messages, numbered
from shoal_city.demo.messages import DemoSettings, Figures, SparkFigures
from shoal_city.demo.summary import Delays, degrees_of, snapshot_of, summarise
from shoal_city.demo.worker import _rounded
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
    command = [sys.executable, "-m", "shoal_city.demo.checker", str(folder)]
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
        "alerts": None,
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


# Alerts

TIME, TIME_MS = "2026-03-01T07:02:03.456Z", 1_772_348_523_456


def alert(vehicles: list[str], phase: str = "begins") -> str:
    return json.dumps({"kind": "bunch", "phase": phase, "vehicles": vehicles, "time": TIME})


@pytest.fixture
def alerted(folder: Path) -> Path:
    """The same, with three alerts that were published, kept and received."""
    alerts = [message(number) for number in range(3)]
    write(folder / ALERTS_KEPT, alerts)
    write(folder / ALERTS_RECEIVED, alerts)
    with Journal(folder / READINGS) as readings:
        for line in (f"5000 a {TIME_MS}", f"7000 b {TIME_MS - 1}", f"8000 a {TIME_MS}"):
            readings.note(line)
    with Journal(folder / ALERTS) as said:
        said.note(f"9500 {alert(['b', 'a'])}")
        said.note(f"6200 {alert(['a'])}")
        said.note(f"99000 {alert(['a'], 'ends')}")
    return folder


def test_alerts_are_late_by_the_reading_that_made_them(alerted: Path) -> None:
    code, verdict = check(alerted)
    assert code == 0
    # The reading was sent twice, and counts from the first time; an end may follow from silence.
    assert verdict["alerts"] == {
        "kept": 3, "delivered": 3, "lost": 0, "double": 0, "invented": 0,
        "delays_ms": [1200, 4500],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("numbers", "lost", "double", "invented"),
    [([0, 1], 1, 0, 0), ([0, 1, 2, 2], 0, 1, 0), ([0, 1, 2, 3], 0, 0, 1)],
)
def test_alerts_that_are_lost_or_too_many_are_seen(
    alerted: Path, numbers: list[int], lost: int, double: int, invented: int
) -> None:
    write(alerted / ALERTS_RECEIVED, [message(number) for number in numbers])
    verdict = compare(alerted)
    assert verdict.alerts is not None
    found = (verdict.alerts.lost, verdict.alerts.double, verdict.alerts.invented)
    assert found == (lost, double, invented)
    assert not verdict.good
    assert check(alerted)[0] == 1


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


def spark(rows: int, out: int = 2) -> SparkFigures:
    both = {"alerts": rows, "speeds": 10}
    return SparkFigures(both, {"alerts": out, "speeds": 5}, 4, 1.5, False)


def test_the_pipeline_is_summed_up_too() -> None:
    alerts = AlertsVerdict(2, 2, 0, 0, 0, tuple(range(1, 101)))
    verdict = Verdict(10, 2, 20, 20, 0, 0, 0, alerts)
    summary = summarise(verdict, [figures()], DemoSettings(), 1.0, (), spark(10))
    assert summary.good
    pipeline = summary.pipeline
    assert pipeline is not None
    assert (pipeline.rows, pipeline.behind, pipeline.alerts, pipeline.speeds) == (10, 0, 2, 5)
    assert pipeline.delay_ms == Delays(51.0, 100.0)


@pytest.mark.parametrize(
    ("read", "out", "behind", "lost"),
    [(7, 2, 3, 0), (12, 2, 0, 0), (10, 3, 0, 1)],
    ids=["slow", "read twice", "nobody keeps it"],
)
def test_a_pipeline_that_did_not_do_its_work_says_so(
    read: int, out: int, behind: int, lost: int
) -> None:
    verdict = Verdict(10, 2, 20, 20, 0, 0, 0, AlertsVerdict(2, 2, 0, 0, 0, ()))
    summary = summarise(verdict, [figures()], DemoSettings(), 1.0, (), spark(read, out))
    pipeline = summary.pipeline
    assert pipeline is not None
    assert (pipeline.behind, pipeline.alerts_lost) == (behind, lost)
    assert pipeline.delay_ms == Delays(None, None)
    assert not summary.good


def test_messages_have_their_size_and_differ() -> None:
    contents = [said.content for said in islice(numbered(308), 2000)]
    assert {len(content) for content in contents} == {308}
    assert len(set(contents)) == 2000
    assert json.loads(next(islice(numbered(110), 7, None)).content)["number"] == 7


def test_the_fleet_is_of_the_rate_and_goes_on_after_a_shift() -> None:
    rate, shifts = 100.0, 2
    messages = list(islice(fleet_messages(rate, 308), int(rate * SHIFT_S / SPEED * shifts)))
    assert min(len(said.content) for said in messages) >= 308
    times_ms = [int(said.reading.split()[1]) for said in messages]
    # So many messages a second of ours are so many seconds of the fleet's.
    assert (max(times_ms) - min(times_ms)) / 1000 == pytest.approx(shifts * SHIFT_S, rel=0.05)
    assert len({said.reading.split()[0] for said in messages}) == 11


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


def test_without_spark_the_remedy_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert ends("demo", "--seconds", "1") == 2
    assert "or say --no-spark" in capsys.readouterr().err


def test_the_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("demo", "--help") == 0
    assert "Example: shoal demo" in capsys.readouterr().out
