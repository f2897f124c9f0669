"""`shoal stream`: the sessions of the README, in real processes."""

from __future__ import annotations

import base64
import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.node.streams.message import partition_of
from tests.cli.test_app import is_refused
from tests.cli.test_serve import tracker
from tests.system.processes import SHOAL, Running, run

ROOT = Path(__file__).parents[2]
STREAM = "0x" + "ab" * 20 + "/vehicles"


@pytest.fixture(scope="module")
def entry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The network file of a tracker that runs."""
    folder = tmp_path_factory.mktemp("tracker")
    with tracker(folder):
        yield (folder / "shoal.toml").read_text()


@pytest.fixture
def network(entry: str, tmp_path: Path) -> Path:
    """A folder with that file. Whoever was in the stream in another test is gone."""
    (tmp_path / "shoal.toml").write_text(entry)
    return tmp_path


class Subscriber(Running):
    """One that has its place, and what it printed."""

    def __init__(self, folder: Path, *options: str, id: str = STREAM) -> None:
        super().__init__("stream", "subscribe", id, *options, folder=folder)
        self.wait_for(lambda: self.err == [f"subscribed to {id}"])

    def contents(self) -> list[Any]:
        return [json.loads(line)["content"] for line in self.out]


def publish(folder: Path, text: str, *options: str, id: str = STREAM) -> str:
    """Publish lines; the publisher's stderr."""
    done = run("stream", "publish", id, *options, folder=folder, text=text)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    return done.stderr


def test_what_one_terminal_publishes_another_prints(network: Path) -> None:
    with Subscriber(network) as subscriber:
        said = publish(network, '{"speed": 8.3}\nnot json\n[1]\n\nno end')
        assert said == f"publishing to {STREAM}\n"
        subscriber.wait_for(lambda: len(subscriber.out) == 5)
        assert subscriber.contents() == [{"speed": 8.3}, "not json", [1], "", "no end"]
        line = json.loads(subscriber.out[0])
        assert line["stream"] == STREAM
        assert re.fullmatch("0x[0-9a-f]{40}", line["publisher"])
        assert line["gap_before"] is None
        assert set(line) == {
            "stream", "partition", "publisher", "timestamp_ms", "sequence", "chain", "content",
            "gap_before",
        }  # fmt: skip
        publish(network, '{"a": 1}\n', "--text")
        subscriber.wait_for(lambda: len(subscriber.out) == 6)
        assert subscriber.contents()[-1] == '{"a": 1}'
        assert subscriber.end(signal.SIGINT) == 0
        assert len(subscriber.err) == 1


def test_a_file_may_be_published(network: Path) -> None:
    lines = network / "lines"
    lines.write_bytes(b"".join(b"%d\n" % number for number in range(500)) + b"\xff\xfe\n")
    with Subscriber(network, "--count", "501") as subscriber:
        with lines.open() as stdin:
            command = [*SHOAL, "stream", "publish", STREAM]
            subprocess.run(command, cwd=network, stdin=stdin, check=True, capture_output=True)
        assert subscriber.end() == 0, "it has counted"
        expected = [*range(500), base64.b64encode(b"\xff\xfe").decode()]
        assert subscriber.contents() == expected


def test_a_subscriber_may_want_them_as_they_come(network: Path) -> None:
    with Subscriber(network, "--unordered", "--count", "2") as subscriber:
        publish(network, "1\n2\n")
        assert subscriber.end() == 0
        assert sorted(subscriber.contents()) == [1, 2]


def test_lines_are_published_as_they_come(network: Path) -> None:
    with (
        Subscriber(network) as subscriber,
        Running("stream", "publish", STREAM, folder=network) as publisher,
    ):
        for number in range(3):
            publisher.say(f"{number}\n")
            subscriber.wait_for(lambda n=number: subscriber.contents() == list(range(n + 1)))  # type: ignore[misc]
        publisher.hang_up()
        assert publisher.end() == 0


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_both_sides_in_good_order(network: Path, name: signal.Signals) -> None:
    with (
        Subscriber(network) as subscriber,
        Running("stream", "publish", STREAM, folder=network) as publisher,
    ):
        publisher.say("1\n")
        subscriber.wait_for(lambda: subscriber.out)
        # Its stdin is open, and says nothing: as a terminal does.
        assert publisher.end(name) == 0
        assert publisher.err == [f"publishing to {STREAM}"]
        assert subscriber.end(name) == 0
        assert subscriber.err == [f"subscribed to {STREAM}"]


def test_a_reader_that_goes_away_ends_the_subscriber(network: Path) -> None:
    with Subscriber(network) as subscriber:
        assert subscriber.process.stdout is not None
        pipe = [sys.executable, "-c", "import sys; print(sys.stdin.readline())"]
        command = f"{shlex.join([*SHOAL, 'stream', 'subscribe', STREAM])} | {shlex.join(pipe)}"
        with subprocess.Popen(
            ["bash", "-c", command], cwd=network, stderr=subprocess.PIPE, stdout=subprocess.PIPE
        ) as shell:
            assert shell.stderr is not None
            assert shell.stderr.readline().startswith(b"subscribed")
            for number in range(20):
                publish(network, f"{number}\n")
                if shell.poll() is not None:
                    break
            out, err = shell.communicate(timeout=30)
            assert json.loads(out)["content"] == 0
            assert b"Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["subscribe", "x"], "stream id 'x': write the owner's address"),
        (["publish", "0x12/x"], "40 hex digits"),
        (["subscribe", STREAM, "--config", "missing.toml"], "no network file missing.toml"),
        (["publish", STREAM, "--config", "empty.toml"], "add [[trackers]]"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shoal.toml").write_text("")
    (tmp_path / "empty.toml").write_text("")
    (tmp_path / "lines").write_text("1\n")
    with (tmp_path / "lines").open() as lines:
        monkeypatch.setattr("sys.stdin", lines)
        out, _ = is_refused(capsys, ["stream", *arguments], complaint)
    assert out == ""


def test_partitions_are_chosen_by_number_or_key(network: Path) -> None:
    with (network / "shoal.toml").open("a") as file:
        file.write('\n[[streams]]\nid = "*"\npartitions = 4\n')
    bus = partition_of("bus 7", 4)
    other = (bus + 1) % 4
    choice = ["--partition", str(bus), "--partition", str((bus + 2) % 4)]
    with Subscriber(network) as everything, Subscriber(network, *choice) as some:
        publish(network, "a\nb\n", "--key", "bus 7")
        publish(network, "c\n", "--partition", str(other))
        everything.wait_for(lambda: len(everything.out) == 3)
        lines = [json.loads(line) for line in everything.out]
        assert [(line["content"], line["partition"]) for line in lines] == [
            ("a", bus), ("b", bus), ("c", other)
        ]  # fmt: skip
        publish(network, "0\n1\n2\n3\n")
        some.wait_for(lambda: len(some.out) == 4)
        assert sorted(map(str, some.contents())) == sorted(["a", "b", str(bus), str((bus + 2) % 4)])
    done = run("stream", "publish", STREAM, "--partition", "4", folder=network, text="x\n")
    assert done.returncode != 0
    assert f"partition 4: {STREAM} has partitions 0..3" in done.stderr
