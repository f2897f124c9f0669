"""`shoal up`, and what one does in another terminal: real processes for what runs beside it, the
command itself for what ends by itself."""

from __future__ import annotations

import asyncio
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

import shoal
from shoal.base.ids import parse_node_id, parse_stream_id
from shoal.cli.commands.up_folder import UpFolder
from shoal.config.network_file import load_network_file
from shoal.identity import SystemEntropy
from shoal.storage.message_store.store import Store
from tests.cli.test_app import ends
from tests.system.processes import Running

ROOT = Path(__file__).parents[2]
GREETINGS = "/greetings"


def start(folder: Path, *options: str) -> Running:
    """A network that is up."""
    running = Running("up", *options, folder=folder)
    running.wait_for(lambda: running.out)
    return running


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("up")
    with start(folder, "--nodes", "2") as running:
        running.wait_for(lambda: running.out[-1].startswith("Ctrl-C ends it"))
        text = "\n".join(running.out)
        found = {
            name: re.search(rf"{name}\s+(\S+)", text) for name in ("gateway", "explorer", "You are")
        }
        said: dict[str, Any] = {name: match[1] for name, match in found.items() if match}
        (tracker,) = load_network_file(folder / "shoal.toml").trackers
        assert tracker.gateway == said["gateway"]
        assert f"stream subscribe {GREETINGS}\n" in text
        yield folder, {**said, "you": said["You are"].rstrip(";"), "node": tracker.id}
        assert running.end(signal.SIGINT) == 0
        assert running.err == []


@pytest.fixture
def up(network: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What it said; we are in its folder, as in another terminal."""
    monkeypatch.chdir(network[0])
    return network[1]


def publish(monkeypatch: pytest.MonkeyPatch, id: str, *lines: str) -> None:
    """Lines of stdin."""
    reading, writing = os.pipe()
    os.write(writing, "".join(f"{line}\n" for line in lines).encode())
    os.close(writing)
    with os.fdopen(reading) as stdin, monkeypatch.context() as patch:
        patch.setattr("sys.stdin", stdin)
        assert ends("stream", "publish", id, "--durable") == 0


def blocks(text: str) -> list[str]:
    """The code blocks of a page."""
    return re.findall(r"```(?:\w*)\n(.*?)```", text, re.DOTALL)


def test_three_commands_in_another_terminal(
    up: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = (ROOT / "README.md").read_text().partition("## A stream of your own\n")[2]
    lines = [line.partition("  #")[0].strip() for line in blocks(readme)[0].splitlines()]
    assert lines == [
        "./run up",
        f"./run stream subscribe {GREETINGS}",
        f"echo '{{\"speed\": 8.3}}' | ./run stream publish {GREETINGS}",
        f"./run stream resend {GREETINGS}",
    ]
    with Running("stream", "subscribe", GREETINGS, "--count", "2") as subscriber:
        subscriber.wait_for(lambda: subscriber.err)
        publish(monkeypatch, GREETINGS, "hello", '{"to": "you"}')
        assert subscriber.end() == 0
        contents = [json.loads(line)["content"] for line in subscriber.out]
    assert contents == ["hello", {"to": "you"}]
    capsys.readouterr()
    assert ends("stream", "resend", GREETINGS, "--json") == 0
    resent = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [message["content"] for message in resent] == contents
    # The subscriber had the key: whoever came second had one of its own.
    assert resent[0]["publisher"] != up["you"]
    assert resent[0]["stream"] == up["you"] + GREETINGS


def test_the_examples_of_the_readme_work(
    up: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    readme = (ROOT / "README.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        names: dict[str, Any] = {}
        body = example.removeprefix("import shoal\n\n")
        exec(f"import shoal\nasync def main():\n{indent(body, '    ')}", names)
        asyncio.run(names["main"]())
    of_a_stream, of_a_topic, sighting, *hits = capsys.readouterr().out.splitlines()
    assert of_a_stream == f"{up['you']} {{'vehicle': 12, 'speed': 8.3}}"
    assert of_a_topic == "b'first'"
    assert hits == [f"{up['you']} {sighting}"]


def test_what_else_the_readme_types(
    up: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = (ROOT / "README.md").read_text().partition("More, in the third\n")[2]
    for line in blocks(readme)[0].splitlines():
        said, _, command = line.partition("  #")[0].rpartition(" | ")
        script, *words = shlex.split(command)
        assert script == "./run"
        reading, writing = os.pipe()
        os.write(writing, f"{shlex.split(said)[1]}\n".encode() if said else b"")
        os.close(writing)
        with os.fdopen(reading) as stdin, monkeypatch.context() as patch:
            patch.setattr("sys.stdin", stdin)
            assert ends(*words) == 0, line
    out = capsys.readouterr().out
    assert "dear diary" in out
    assert out.splitlines()[-1].endswith('{"title":"Air in Kallio","pm25":7.1}')


@pytest.mark.parametrize("number", range(6))
def test_the_examples_of_the_api_page_work(up: dict[str, Any], number: int) -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    examples = [text for text in blocks(page) if text.startswith("import ")]
    assert len(examples) == 6
    exec(compile(examples[number], "docs/api.md", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("name", ["sensor.py", "notes.py"])
def test_the_examples_run_as_they_are(
    up: dict[str, Any], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    assert capsys.readouterr().out


def test_a_stream_that_is_yours_alone_works_in_two_terminals(
    up: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends("stream", "create", "/journal") == 0
    with Running("stream", "subscribe", "/journal", "--count", "2") as subscriber:
        subscriber.wait_for(lambda: subscriber.err)
        publish(monkeypatch, "/journal", "dear me")
        capsys.readouterr()
        # By a node with a spare key; the one that published had another, and is gone.
        assert ends("stream", "resend", "/journal") == 0
        told = capsys.readouterr()
        assert told.out.endswith(" dear me\n")
        assert told.err.endswith("1 message of " + up["you"] + "/journal\n")
        publish(monkeypatch, "/journal", "good night")
        assert subscriber.end() == 0
        assert [json.loads(line)["content"] for line in subscriber.out] == ["dear me", "good night"]
    # Nobody else's: the same network, without the key.
    text = Path("shoal.toml").read_text()
    Path("guest.toml").write_text(text.replace('key = "shoal-data/you.key"\n', ""))
    capsys.readouterr()
    theirs = up["you"] + "/journal"
    assert ends("stream", "subscribe", theirs, "--config", "guest.toml") == 2
    assert "may not subscribe: its owner allows it with" in capsys.readouterr().err
    assert ends("stream", "resend", theirs, "--config", "guest.toml") == 1
    refused = capsys.readouterr().err
    assert f"no-permission): its owner allows it with `shoal stream grant {theirs}`" in refused
    assert ends("stream", "create", "/open", "--public") == 0
    opened = up["you"] + "/open"
    publish(monkeypatch, "/open", "hello")
    assert ends("stream", "resend", opened, "--config", "guest.toml") == 0
    assert capsys.readouterr().out.endswith(" hello\n")


def test_the_overlay_can_be_looked_at(
    up: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    deadline = time.monotonic() + 30
    members: list[str] = []
    while len(members) < 3 and time.monotonic() < deadline:  # the others join by and by
        assert ends("stream", "topology", GREETINGS, "--json") == 0
        members = json.loads(capsys.readouterr().out)["members"]
        time.sleep(0.1)
    assert len(members) == 3
    assert up["node"] in members
    assert ends("stream", "topology", GREETINGS) == 0
    assert capsys.readouterr().err == "3 nodes, 3 links, degree 4\n"
    assert ends("stream", "estimate", GREETINGS, "--json") == 0
    assert json.loads(capsys.readouterr().out)["nodes"] == 3
    assert ends("stream", "topology", "/nobody-is-here") == 2
    assert "nobody is in" in capsys.readouterr().err
    with urllib.request.urlopen(up["explorer"], timeout=30) as page:
        assert b"<html" in page.read()


def test_topics_and_search_are_there(
    up: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with shoal.connect() as node:
        topic = node.create_topic("news", publishers=shoal.ANYONE)
        event = topic.publish(b"first", replicas=1)
        assert [e.cid for e in topic.read()] == [event.cid]
        node.put({"title": "Air quality", "pm25": 7.1}, name="air")
        deadline_s = time.monotonic() + 30  # it is on its way for a moment
        while not (hits := list(node.search("title:air"))) and time.monotonic() < deadline_s:
            pass
        assert [hit.content["pm25"] for hit in hits] == [7.1]


def test_a_doctor_finds_nothing(up: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("doctor", "--json") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    states = {line["what"]: line["state"] for line in found}
    assert states["key"] == states["tracker"] == states["clock"] == states["registry"] == "ok"
    (tracker,) = [line for line in found if line["what"] == "tracker"]
    assert "tracker, node, storage, topics, search" in tracker["found"]


def test_a_second_one_in_the_same_folder_is_refused(
    up: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends("up") == 2
    assert "`shoal up` runs in . already: stop it" in capsys.readouterr().err


def test_a_backup_while_messages_come_has_all_that_were_acknowledged(
    up: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    acknowledged: list[Any] = []
    enough, stop = threading.Event(), threading.Event()

    def write() -> None:
        with shoal.connect() as node:
            stream = node.open_stream(GREETINGS)
            while not stop.is_set():
                acknowledged.append(stream.publish({"number": len(acknowledged)}, durable=True))
                if len(acknowledged) == 20:
                    enough.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert enough.wait(60)
        before = list(acknowledged)
        archive = tmp_path / "backup.tar"
        assert ends("backup", str(archive), "--json") == 0
    finally:
        stop.set()
        writer.join(60)
    assert len(acknowledged) > len(before), "it was written to meanwhile"
    names = {entry["name"] for entry in json.loads(capsys.readouterr().out)["entries"]}
    assert {"shoal.toml", "shoal-data/you.key", "shoal-data/store/data.mdb"} <= names
    assert archive.stat().st_mode & 0o077 == 0
    folder = tmp_path / "elsewhere"
    assert ends("restore", str(archive), str(folder)) == 0
    restored = load_network_file(UpFolder(folder).file)
    assert restored.storage is not None
    with Store(restored.path(restored.storage.folder), SystemEntropy()) as store:
        store.check_invariants()
        assert sum(len(rows) for rows in store.get(before)) == len(before)


def test_the_next_start_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = []
    for name in (signal.SIGKILL, signal.SIGTERM):
        with start(tmp_path, "--nodes", "0", "--json") as running:
            said.append(json.loads(running.out[0]))
            with shoal.connect() as node:
                stream = node.open_stream(GREETINGS)
                stream.publish("again", durable=True)
                counted = sum(1 for _ in stream.read())
            assert running.end(name) == (0 if name is signal.SIGTERM else -name)
    assert counted == 2
    assert said[0] == said[1]
    assert parse_node_id(said[0]["you"])


def test_a_store_that_was_deleted_is_not_made_anew(tmp_path: Path) -> None:
    with start(tmp_path, "--nodes", "0") as running:
        assert running.end(signal.SIGTERM) == 0
    shutil.rmtree(tmp_path / "shoal-data" / "store")
    with Running("up", "--nodes", "0", folder=tmp_path) as again:
        assert again.end() == 1
    assert "this key has had one there" in again.err[0]
    assert not (tmp_path / "shoal-data" / "store").exists()


def test_a_network_file_of_somebody_else_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shoal.toml").write_text("# mine\n")
    assert ends("up") == 2
    assert "shoal.toml is there already, and not of `shoal up`" in capsys.readouterr().err
    assert Path("shoal.toml").read_text() == "# mine\n"
    assert not Path("shoal-data").exists()


def test_without_an_evm_there_is_no_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Python 3.13."""
    monkeypatch.setattr("shoal.cli.commands.up_folder.find_spec", lambda name: None)
    folder = UpFolder(tmp_path)
    network = asyncio.run(folder.open())
    folder.close()
    assert network.registry is None
    assert load_network_file(folder.yours).registry is None
    assert network.storage_of(parse_stream_id("0x" + "ab" * 20 + "/x"))


def test_a_start_that_was_cut_short_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = UpFolder(tmp_path)

    def cut(*given: object) -> str:
        raise RuntimeError("power loss")

    with monkeypatch.context() as patch:
        patch.setattr("shoal.cli.commands.up_folder._yours", cut)
        with pytest.raises(RuntimeError, match="power loss"):
            asyncio.run(folder.open())
    you = folder.key("you.key").address
    network = asyncio.run(folder.open())
    folder.close()
    assert folder.key("you.key").address == you
    assert network.registry is not None
