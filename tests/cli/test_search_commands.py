"""`shoal search`, `watch` and `doc put|get|delete`, beside a node that runs."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import threading
import tomllib
from collections.abc import Iterator
from io import BytesIO, TextIOWrapper
from pathlib import Path
from queue import SimpleQueue

import pytest

from shoal.base.ids import show_node_id
from shoal.cli.commands.search import gap_line
from shoal.config.sections import SearchSection
from shoal.node import Gap, NetworkFile, Node
from tests.cli.test_app import ends
from tests.node.search import FAST
from tests.node.test_life import keystore
from tests.system.processes import PATIENCE_S, Running, run


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the network file of who has a key, beside a node that runs."""
    folder = tmp_path_factory.mktemp("network")
    (folder / "carrier.toml").write_text("[search]\n")
    with Running("serve", "--config", "carrier.toml", folder=folder) as carrier:
        carrier.wait_for(lambda: len(carrier.out) == 3)
        entry = "\n".join(carrier.out)
        assert list(tomllib.loads(entry)["search"]["bootstrap"][0]) == ["id", "addresses"]
        write_files(folder, entry)
        yield folder
        assert carrier.end(signal.SIGTERM) == 0
        assert carrier.err == []


def write_files(folder: Path, entry: str) -> None:
    keystore(folder / "node.key", "node", passphrase="")
    (folder / "shoal.toml").write_text(f'[node]\nkey = "node.key"\n[search]\n{entry}\n')
    (folder / "guest.toml").write_text(f"[search]\n{entry}\n")


@pytest.fixture
def quick_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same with everybody in this process, where nodes need not wait as long for each other."""
    monkeypatch.setattr("shoal.node.search.client.SearchConfig", FAST)
    entries: SimpleQueue[str] = SimpleQueue()
    stopped = threading.Event()

    async def carry() -> None:
        async with Node.open(NetworkFile(search=SearchSection())) as node:
            addresses = json.dumps(node.addresses)
            entries.put(
                f'[[search.bootstrap]]\nid = "{show_node_id(node.id)}"\naddresses = {addresses}'
            )
            await asyncio.to_thread(stopped.wait)

    carrier = threading.Thread(target=lambda: asyncio.run(carry()))
    carrier.start()
    try:
        write_files(tmp_path, entries.get(timeout=PATIENCE_S))
        monkeypatch.chdir(tmp_path)
        yield tmp_path
    finally:
        stopped.set()
        carrier.join(PATIENCE_S)
    assert not carrier.is_alive()


def test_a_session(
    quick_network: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def done(*arguments: str) -> tuple[int, str, str]:
        code = ends(*arguments)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    text = '{"title": "Air quality, Kallio \\u009b2J", "pm25": 7.1}'
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(text.encode())))
    code, out, err = done("doc", "put", "kallio")
    assert code == 0, err
    address = out.strip()
    assert re.fullmatch("0x[0-9a-f]{40}/kallio", address)
    assert re.fullmatch(r"version \d+, on its way to \d+ nodes\n", err)

    guest = ("--config", "guest.toml", "--limit", "1")
    code, out, err = done("search", "title:air pm25:<10", *guest, "--json")
    assert code == 0, err
    (hit,) = map(json.loads, out.splitlines())
    assert hit["content"] == json.loads(text)
    assert f"{hit['owner']}/{hit['name']}" == address
    assert set(hit) == {
        "content", "owner", "name", "kind", "life", "version", "expires", "score",
    }  # fmt: skip
    assert re.fullmatch(
        r"1 document; \d+ nodes of about \d+ asked, confidence [01]\.\d+, about \d+ messages\n",
        err,
    )
    _, shown, _ = done("search", "air", *guest)
    assert shown.startswith(f'{address} {{"title":"Air quality, Kallio \\u009b2J"'), "no steering"

    code, out, err = done("doc", "get", address, "--config", "guest.toml")
    assert code == 0, err
    assert json.loads(out) == json.loads(text)

    code, out, err = done("doc", "delete", "kallio")
    assert code == 0, err
    assert f"{address} is deleted" in err
    code, out, err = done("doc", "get", "kallio")
    assert code == 2
    assert f"document {address} is deleted" in err
    assert done("search", "air", "--within", "1")[:2] == (0, "")


def test_a_watch_prints_what_comes(network: Path) -> None:
    watching = ("watch", "vehicle.speed:>25", "--config", "guest.toml", "--count", "1", "--json")
    with Running(*watching, folder=network) as events:
        events.wait_for(lambda: events.err == ["watching for vehicle.speed:>25"])
        (network / "slow.json").write_text('{"vehicle": {"speed": 8}}')
        (network / "fast.json").write_text('{"vehicle": {"speed": 27.5}}')
        for name in ("slow", "fast"):
            done = run("doc", "put", name, f"{name}.json", "--kind", "instant", folder=network)
            assert done.returncode == 0, done.stderr
        assert events.end() == 0, events.err
        (line,) = map(json.loads, events.out)
        assert (line["name"], line["kind"]) == ("fast", "event")
        assert line["content"] == {"vehicle": {"speed": 27.5}}
        assert line["gap_before"] is None


def test_a_managed_document_is_there_as_long_as_its_command_runs(network: Path) -> None:
    (network / "x.json").write_text('{"title": "x"}')
    managed = ("doc", "put", "x", "x.json", "--kind", "managed", "--config", "guest.toml")
    with Running(*managed, folder=network) as owner:
        owner.wait_for(lambda: "kept as long as this command runs" in "".join(owner.err))
        assert "new key with every start" in owner.err[0]
        assert owner.end(signal.SIGINT) == 0
        assert len(owner.out) == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("search", "pm25 >3"), "character 6 (in 'pm25 >3'): of which field?"),
        (("search", "x", "--confidence", "1"), "confidence=1.0: give a part of one"),
        (("watch", "("), "something to look for is missing here"),
        (("doc", "put", "x", "list.json"), "list.json is no JSON object (Expected `object`, got"),
        (("doc", "put", "x", "missing.json"), "no file missing.json"),
        (("doc", "put", "x", "."), ". cannot be read: Is a directory"),
        (("doc", "put", "x", "good.json", "--life", "soon"), "--life 'soon': write a number and s"),
        (("doc", "put", "x", "good.json", "--life", "9999d"), "is no life of a durable document"),
        (("doc", "put", "", "good.json"), "a name has 1 to 128 characters"),
        (("doc", "get", "0x12/x"), "'0x12' is not a node id"),
    ],
)
def test_what_is_wrong_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("node.toml").write_text('[node]\nkey = "node.key"\n[search]\n')
    keystore(Path("node.key"), "node", passphrase="")
    Path("list.json").write_text("[1]")
    Path("good.json").write_text('{"a": 1}')
    assert ends(*arguments, "--config", "node.toml") == 2
    printed = capsys.readouterr()
    assert complaint in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_a_node_without_search_is_told_what_to_add(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shoal.toml").write_text("")
    assert ends("search", "x", "--config", str(tmp_path / "shoal.toml")) == 2
    complaint = "this node is not in the search network: add [search] to its file"
    assert complaint in capsys.readouterr().err


def test_a_gap_of_a_watch_says_what_it_is() -> None:
    assert gap_line(Gap(3, "slow-consumer")) == "3 documents came too fast"
    assert "may be missing here" in gap_line(Gap(None, "lost"))
