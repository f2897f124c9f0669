"""`shoal search`, `watch` and `doc put|get|delete`, in real processes beside a node that runs."""

from __future__ import annotations

import json
import re
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_app import ends
from tests.node.test_life import keystore
from tests.system.processes import Running, run


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Path]:
    """A folder with the network file of who has a key, beside a node that runs."""
    (tmp_path / "carrier.toml").write_text("[search]\n")
    with Running("node", "--config", "carrier.toml", folder=tmp_path) as carrier:
        carrier.wait_for(lambda: len(carrier.out) == 3)
        entry = "\n".join(carrier.out)
        assert list(tomllib.loads(entry)["search"]["bootstrap"][0]) == ["id", "addresses"]
        keystore(tmp_path / "node.key", "node", passphrase="")
        (tmp_path / "shoal.toml").write_text(f'[node]\nkey = "node.key"\n{entry}\n')
        (tmp_path / "guest.toml").write_text(f"{entry}\n")
        yield tmp_path
        assert carrier.end(signal.SIGTERM) == 0
        assert carrier.err == []


def test_a_session(network: Path) -> None:
    text = '{"title": "Air quality, Kallio \\u009b2J", "pm25": 7.1}'
    put = run("doc", "put", "kallio", folder=network, text=text)
    assert put.returncode == 0, put.stderr
    address = put.stdout.strip()
    assert re.fullmatch("0x[0-9a-f]{40}/kallio", address)
    assert re.fullmatch(r"version \d+, on its way to \d+ nodes\n", put.stderr)

    guest = ("--config", "guest.toml", "--limit", "1")
    hits = run("search", "title:air pm25:<10", *guest, "--json", folder=network)
    assert hits.returncode == 0, hits.stderr
    (hit,) = map(json.loads, hits.stdout.splitlines())
    assert hit["content"] == json.loads(text)
    assert f"{hit['owner']}/{hit['name']}" == address
    assert set(hit) == {
        "content", "owner", "name", "kind", "life", "version", "expires", "score",
    }  # fmt: skip
    assert re.fullmatch(
        r"1 document; \d+ nodes of about \d+ asked, confidence [01]\.\d+, about \d+ messages\n",
        hits.stderr,
    )
    shown = run("search", "air", *guest, folder=network).stdout
    assert shown.startswith(f'{address} {{"title":"Air quality, Kallio \\u009b2J"'), "no steering"

    got = run("doc", "get", address, "--config", "guest.toml", folder=network)
    assert got.returncode == 0, got.stderr
    assert json.loads(got.stdout) == json.loads(text)

    deleted = run("doc", "delete", "kallio", folder=network)
    assert deleted.returncode == 0, deleted.stderr
    assert f"{address} is deleted" in deleted.stderr
    gone = run("doc", "get", "kallio", folder=network)
    assert gone.returncode == 2
    assert f"document {address} is deleted" in gone.stderr
    nothing = run("search", "air", "--within", "1", folder=network)
    assert (nothing.returncode, nothing.stdout) == (0, "")


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


@pytest.mark.parametrize(
    "command", [["search"], ["watch"], ["doc"], ["doc", "put"], ["doc", "get"], ["doc", "delete"]]
)
def test_every_command_explains_itself(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends(*command, "--help") == 0
    assert "Example: " in capsys.readouterr().out
