"""`shoal serve`, as processes that run until they are told to stop."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import resource
import signal
import socket
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from shoal.base.ids import parse_node_id
from shoal.cli.terminal.process import LogLines
from shoal.identity import PrivateKey, ScryptCost, SeededEntropy, create_keystore
from shoal.node import load_network_file
from shoal.node.streams import memberships
from tests.cli.test_app import ends, is_refused
from tests.node.network import free_port
from tests.node.test_life import keystore
from tests.system.processes import SHOAL, Running
from tests.transport.stage import credentials
from tests.transport.wires import WebSocketWire, shake_hands

STREAM = "0x" + "ab" * 20 + "/x"


@contextmanager
def tracker(folder: Path, *options: str) -> Iterator[Running]:
    """A tracker, and its entry as a network file in a folder."""
    with Running(
        "serve", "--tracker", "--listen", "ws://127.0.0.1:0", *options, folder=folder
    ) as running:
        running.wait_for(lambda: any(line.startswith("addresses") for line in running.out))
        (folder / "shoal.toml").write_text("\n".join(running.out) + "\n")
        yield running


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def test_a_key_makes_a_tracker_the_same_each_time(tmp_path: Path) -> None:
    entropy = SeededEntropy("tracker")
    key = PrivateKey.generate(entropy)
    cost = ScryptCost(n=16, r=1, p=1)
    create_keystore(tmp_path / "tracker.key", key, "open sesame", entropy, cost=cost)
    (tmp_path / "secret").write_text("open sesame")
    with tracker(tmp_path, "--key", "tracker.key", "--passphrase", "file:secret"):
        entry = tomllib.loads((tmp_path / "shoal.toml").read_text())["trackers"][0]
        assert entry["id"] == "0x" + key.address.hex()


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
def test_a_tracker_and_a_node_do_their_work_and_end_when_told(
    tmp_path: Path, name: signal.Signals
) -> None:
    with tracker(tmp_path, "--gateway", "127.0.0.1:0", "--degree", "5") as tracking:
        (entry,) = load_network_file(tmp_path / "shoal.toml").trackers
        assert entry.addresses[0].startswith("ws://127.0.0.1:")
        gateway = tracking.out[0].removeprefix("# gateway ")
        tracking.wait_for(lambda: tracking.out[-1] == f'gateway = "{gateway}"')
        health = get(gateway + "/health")
        assert health == {"node": entry.id, "links": 0, "tracker": True}
        config = (tmp_path / "shoal.toml").read_text() + '\n[gateway]\nlisten = "127.0.0.1:0"\n'
        (tmp_path / "node.toml").write_text(config)
        other = "0x" + "cd" * 20 + "/y"
        arguments = ("serve", "--config", "node.toml", "--stream", STREAM, "--stream", other)
        with Running(*arguments, folder=tmp_path) as running:
            running.wait_for(lambda: len(running.out) == 2)
            assert running.out[0].startswith("# gateway http://127.0.0.1:")
            assert running.out[1].startswith("node 0x")
            running.wait_for(lambda: len(get(gateway + "/streams")) == 2)
            assert get(gateway + "/streams") == [
                {"id": STREAM, "members": 1},
                {"id": other, "members": 1},
            ]
            assert running.end(name) == 0
            assert running.err == []
        tracking.wait_for(lambda: get(gateway + "/streams") == [])  # it said goodbye
        assert tracking.end(name) == 0
        assert tracking.err == []


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGHUP])
def test_a_second_signal_neither_cuts_the_end_short_nor_keeps_it_off(
    tmp_path: Path, second: signal.Signals
) -> None:
    """As of a terminal that is closed meanwhile."""
    with tracker(tmp_path, "--storage", "store") as running:
        (entry,) = load_network_file(tmp_path / "shoal.toml").trackers

        async def main() -> int:
            deaf = await WebSocketWire.open(entry.addresses[0])
            await shake_hands(deaf, credentials("deaf"), parse_node_id(entry.id))
            deaf.transport.underlying_transport.pause_reading()  # and so never hears a goodbye
            try:
                running.process.send_signal(signal.SIGINT)
                await asyncio.sleep(1)
                assert running.process.poll() is None, "it waits for the one that does not read"
                return await asyncio.to_thread(running.end, second)
            finally:
                deaf.hang_up()

        assert asyncio.run(main()) == 0
        assert [line for line in running.err if "no stream is kept" not in line] == []


def test_a_node_without_streams_waits(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text("")
    with Running("serve", folder=tmp_path) as running:
        running.wait_for(lambda: running.out)
        loaded = Path(f"/proc/{running.process.pid}/maps").read_text()
        assert "coincurve" in loaded
        assert "aiohttp" not in loaded, "nobody asked for a gateway"
        assert running.end(signal.SIGTERM) == 0


def test_a_node_asks_for_all_files_that_it_may_have(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text("")
    with_few = ("sh", "-c", 'ulimit -S -n 256; exec "$@"', "sh", *SHOAL)
    with Running("serve", folder=tmp_path, command=with_few) as running:
        running.wait_for(lambda: running.out)
        soft, hard = resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE)
        assert soft == hard


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["serve", "--config", "missing.toml"], "no network file missing.toml: `shoal up`"),
        (["serve", "--config", "bad.toml"], "bad.toml: tracker.degree: expected `int` >= 3"),
        (["serve", "--config", "empty.toml", "--stream", STREAM], "add [[trackers]]"),
        (["serve", "--config", "empty.toml", "--stream", "x"], "stream id 'x': write the owner"),
        (["serve", "--tracker", "--listen", "http://x"], "write ws://HOST:PORT"),
        (["serve", "--tracker", "--listen", "wss://127.0.0.1:0"], "needs a certificate"),
        (
            ["serve", "--tracker", "--listen", "ws://127.0.0.1:0", "--gateway", "x"],
            "write host:port",
        ),
        (["serve", "--tracker", "--key", "missing.key"], "missing.key"),
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
    (tmp_path / "bad.toml").write_text("[tracker]\ndegree = 1\n")
    (tmp_path / "empty.toml").write_text("")
    is_refused(capsys, arguments, complaint)


def test_a_port_that_is_taken_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert ends("serve", "--tracker", "--listen", f"ws://127.0.0.1:{port}") == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith(f"shoal: cannot listen on ws://127.0.0.1:{port}: ")
        assert printed.err.count("\n") == 1
        listen = ("--listen", "ws://127.0.0.1:0", "--gateway", f"127.0.0.1:{port}")
        assert ends("serve", "--tracker", *listen) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"shoal: gateway listen = '127.0.0.1:{port}': ")
        assert error.count("\n") == 1


def test_a_tracker_that_does_not_answer_ends_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memberships, "JOIN_TIMEOUT_S", 0.2)
    config = tmp_path / "shoal.toml"
    config.write_text(f'[[trackers]]\nid = "{STREAM[:42]}"\naddresses = ["ws://127.0.0.1:9"]\n')
    assert ends("serve", "--config", str(config), "--stream", STREAM) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"shoal: {STREAM}: no answer from tracker {STREAM[:42]} within 0.2 s")
    assert error.count("\n") == 1


def test_the_log_says_when_what_is_lost_and_when_it_is_back(tmp_path: Path) -> None:
    keystore(tmp_path / "tracker.key", "tracker", passphrase="")
    listen = f"ws://127.0.0.1:{free_port()}"
    tracking = ("serve", "--tracker", "--key", "tracker.key", "--listen", listen)
    with Running(*tracking, "--gateway", "127.0.0.1:0", folder=tmp_path) as first:
        first.wait_for(lambda: len(first.out) == 5)
        gateway = first.out[0].removeprefix("# gateway ")
        (tmp_path / "shoal.toml").write_text("\n".join(first.out))
        with Running("serve", "--stream", STREAM, folder=tmp_path) as node:
            node.wait_for(lambda: get(gateway + "/streams"))
            assert first.end(signal.SIGKILL) == -signal.SIGKILL
            id = tomllib.loads("\n".join(first.out))["trackers"][0]["id"]
            node.wait_for(lambda: len(node.err) >= 2)
            with Running(*tracking, folder=tmp_path) as second:
                second.wait_for(lambda: len(second.out) == 3)
                node.wait_for(lambda: len(node.err) >= 4)
            assert node.end(signal.SIGTERM) == 0
    line = re.compile(r"(\S+)Z (INFO|WARNING) shoal\.node: 0x[0-9a-f]{8}: (.*)")
    found = [match for match in map(line.fullmatch, node.err) if match is not None]
    assert len(found) == len(node.err), node.err
    times = [datetime.fromisoformat(match[1]) for match in found]
    assert times == sorted(times)
    said = [(match[2], match[3].partition(": ")[0]) for match in found]
    assert said[:2] == [
        ("WARNING", "streams not ready"),
        ("WARNING", f"tracker {id} lost"),
    ] or said[:2] == [("WARNING", f"tracker {id} lost"), ("WARNING", "streams not ready")]
    back = sorted(text for level, text in said[2:4] if level == "INFO")
    assert back[0] == "streams ready again"
    assert back[1].startswith(f"tracker {id} back after ")


def test_no_line_of_the_log_is_broken_by_what_others_say() -> None:
    record = logging.LogRecord("shoal.x", logging.ERROR, "", 0, "%s", ("é\nfake\x1b[0m",), None)
    assert LogLines().format(record).endswith("Z ERROR shoal.x: é\\nfake\\x1b[0m")


def test_a_hangup_has_the_file_read_again_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    with (
        tracker(tmp_path, "--gateway", "127.0.0.1:0") as old,
        Running("serve", "--stream", STREAM, folder=tmp_path) as node,
    ):
        streams = old.out[0].removeprefix("# gateway ") + "/streams"
        node.wait_for(lambda: get(streams))
        good = (tmp_path / "shoal.toml").read_text()
        (tmp_path / "shoal.toml").write_text("[[trackers]")
        node.process.send_signal(signal.SIGHUP)
        node.wait_for(lambda: "nothing is changed" in "".join(node.err))
        (tmp_path / "other").mkdir()
        with tracker(tmp_path / "other", "--gateway", "127.0.0.1:0") as new:
            entry = (tmp_path / "other" / "shoal.toml").read_text()
            (tmp_path / "shoal.toml").write_text(f'[node]\nregion = "x"\n{entry}')
            node.process.send_signal(signal.SIGHUP)
            line = "the network file was read again; taken: trackers; needs a restart: node"
            node.wait_for(lambda: any(said.endswith(line) for said in node.err))
            moved = new.out[0].removeprefix("# gateway ") + "/streams"
            node.wait_for(lambda: get(moved) == [{"id": STREAM, "members": 1}])
            node.wait_for(lambda: get(streams) == [])
            assert node.process.poll() is None
            assert node.end(signal.SIGTERM) == 0
        assert good != entry
