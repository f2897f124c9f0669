"""`shoal serve --storage` and `shoal stream resend`, in real processes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.base.ids import MessageId, parse_node_id, parse_stream_id
from shoal.cli.commands.serve import _is_named
from shoal.cli.commands.stream import _shown
from shoal.config.sections import PeerEntry, StreamSettings
from shoal.identity import PrivateKey, ScryptCost, SeededEntropy, create_keystore
from shoal.node import Message, NetworkFile, Node
from shoal.node.streams.message import NO_KEY
from tests.cli.test_app import is_refused
from tests.cli.test_serve import get
from tests.node.network import free_port
from tests.system.processes import Running, run

STREAM = "0x" + "ab" * 20 + "/vehicles"


@contextmanager
def archive(folder: Path) -> Iterator[Running]:
    """A tracker and a storage node, and the network file of everybody in a folder."""
    key = PrivateKey.generate(SeededEntropy("storage"))
    cost = ScryptCost(n=16, r=1, p=1)
    create_keystore(folder / "storage.key", key, "sesame", SeededEntropy("salt"), cost=cost)
    (folder / "secret").write_text("sesame")
    ports = [free_port(), free_port()]
    id = "0x" + key.address.hex()
    public = f"""
[[storage_nodes]]
id = "{id}"
addresses = ["ws://127.0.0.1:{ports[1]}"]

[[streams]]
id = "{STREAM}"
storage = ["{id}"]
"""
    tracker = f'[node]\nlisten = ["ws://127.0.0.1:{ports[0]}"]\n[tracker]\n{public}'
    (folder / "tracker.toml").write_text(tracker)
    with Running("serve", "--config", "tracker.toml", folder=folder) as tracking:
        tracking.wait_for(lambda: len(tracking.out) == 3)
        (folder / "shoal.toml").write_text("\n".join([*tracking.out, public]))
        secret = ("--key", "storage.key", "--passphrase", "file:secret")
        arguments = (*secret, "--storage", "store", "--gateway", "127.0.0.1:0")
        listen = f"ws://127.0.0.1:{ports[1]}"
        with Running("serve", *arguments, "--listen", listen, folder=folder) as storing:
            storing.wait_for(lambda: len(storing.out) == 4)
            assert storing.out[1:] == [
                "[[storage_nodes]]",
                f'id = "{id}"',
                f'addresses = ["{listen}"]',
            ]
            yield storing
            assert storing.end(signal.SIGTERM) == 0
            assert storing.err == []


def resend(folder: Path, *options: str) -> list[str]:
    done = run("stream", "resend", STREAM, *options, folder=folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith(f"messages of {STREAM}\n")
    return done.stdout.splitlines()


def contents(lines: list[str]) -> list[Any]:
    return [json.loads(line)["content"] for line in lines]


def test_what_was_published_is_resent_and_followed(tmp_path: Path) -> None:
    with archive(tmp_path) as storing:
        gateway = storing.out[0].removeprefix("# gateway ")
        text = "".join(f'{{"number": {n}}}\n' for n in range(40)) + "text\n"
        assert run("stream", "publish", STREAM, folder=tmp_path, text=text).returncode == 0

        def kept() -> int:
            partitions = get(f"{gateway}/streams/{STREAM}/log/heads")["partitions"]
            return int(partitions["0"][0]["last"]) if partitions else 0

        storing.wait_for(lambda: kept() == 41)
        everything = [*({"number": n} for n in range(40)), "text"]
        lines = resend(tmp_path, "--json")
        assert contents(lines) == everything
        assert contents(resend(tmp_path, "--last", "3", "--json")) == everything[-3:]
        when = json.loads(lines[-1])["timestamp_ms"]
        since = resend(tmp_path, "--from", str(when), "--to", "2100-01-01T00:00:00Z", "--json")
        assert contents(since)[-1] == "text"
        one, two = resend(tmp_path, "--last", "2")
        publisher = json.loads(lines[0])["publisher"]
        assert one.endswith(f"Z {publisher[:10]} " + '{"number":39}')
        assert two.endswith(f"Z {publisher[:10]} text")
        assert (tmp_path / "store").is_dir(), "where the command was given"
        arguments = ("stream", "subscribe", STREAM, "--start", "last:5", "--count", "6")
        with Running(*arguments, folder=tmp_path) as subscriber:
            subscriber.wait_for(lambda: len(subscriber.out) == 5)
            assert run("stream", "publish", STREAM, folder=tmp_path, text="6\n").returncode == 0
            assert subscriber.end() == 0
            assert contents(subscriber.out) == [*everything[-5:], 6]
        begin = ("stream", "subscribe", STREAM, "--start")
        first = run(*begin, "last:5", "--count", "2", "--offsets", folder=tmp_path)
        offset = json.loads(first.stdout.splitlines()[-1])["offset"]
        then = run(*begin, offset, "--count", "3", folder=tmp_path)
        assert contents(then.stdout.splitlines()) == [*everything[-2:], 6]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["resend", STREAM, "--last", "5", "--from", "7"], "give one or the other"),
        (["resend", STREAM, "--from", "noon"], "--from 'noon': write milliseconds since 1970"),
        (["resend", STREAM, "--publisher", "bob"], "publisher='bob'"),
        (["resend", STREAM, "--from", "9", "--to", "5"], ".009Z is after --to 1970-01-01T00:00:00"),
        (["subscribe", STREAM, "--start", "last:0"], "write last:100"),
        (["subscribe", STREAM, "--unordered", "--start", "last:5"], "give it without --start"),
        (["subscribe", STREAM, "--unordered", "--offsets"], "give it without --start"),
        (["subscribe", STREAM, "--start", "last:" + "9" * 4400], "write last:100"),
        (["subscribe", STREAM, "--start", "noon"], "or latest, earliest, last:100, an offset"),
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
    (tmp_path / "shoal.toml").write_text("[tracker]\n")
    is_refused(capsys, ["stream", *arguments], complaint)


def test_a_stream_that_nobody_keeps_is_said(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text("[tracker]\n")
    done = run("stream", "resend", STREAM, folder=tmp_path)
    assert done.returncode == 2
    assert "storage = [...] under [[streams]]" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_storage_node_that_no_stream_names_says_so(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text("[tracker]\n[node]\nlisten = []\n")
    with Running(
        "serve", "--storage", "store", "--listen", "ws://127.0.0.1:0", folder=tmp_path
    ) as running:
        running.wait_for(lambda: running.err and len(running.out) == 6)
        assert running.err[0].startswith('no stream is kept here yet: write storage = ["0x')
        assert running.out[0] == "[[trackers]]"
        assert running.out[3] == "[[storage_nodes]]"
        assert running.end(signal.SIGINT) == 0


def test_one_that_every_stream_names_has_nothing_to_say() -> None:
    id = "0x" + "cd" * 20
    named = NetworkFile(
        storage_nodes=(PeerEntry(id, ("ws://127.0.0.1:7710",)),),
        streams=(StreamSettings(id="*", storage=(id,)),),
    )
    for network, expected in ((named, True), (NetworkFile(), False)):
        running = SimpleNamespace(id=bytes.fromhex("cd" * 20), network=network)
        assert _is_named(cast(Node, running)) is expected


def test_a_message_that_cannot_be_opened_is_shown_as_that() -> None:
    id = MessageId(parse_stream_id(STREAM), 0, 1000, 0, parse_node_id("0x" + "cd" * 20), "1")
    shown = _shown(Message(id, None, 0, 0, undecryptable=NO_KEY))
    assert shown == (
        "1970-01-01T00:00:01.000Z 0xcdcdcdcd (encrypted, and cannot be opened here: no-key)"
    )
