"""`shoal topic create|publish|subscribe|read`, in real processes beside a node of the DHT."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_app import ends
from tests.node.test_life import keystore
from tests.system.processes import Running, run

MISSING = "zdpuAmyVF5ZGPQ1MnvCA1BxrDH9J65AsSXLHWZKeNCC5yxyv7"


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the network file of who has a key and a folder, beside a node that runs."""
    folder = tmp_path_factory.mktemp("network")
    (folder / "carrier.toml").write_text("[dht]\n")
    with Running("serve", "--config", "carrier.toml", folder=folder) as carrier:
        carrier.wait_for(lambda: len(carrier.out) == 3)
        entry = "\n".join(carrier.out)
        keystore(folder / "node.key", "node", passphrase="")
        own = '[node]\nkey = "node.key"\n[dht]\n[topics]\nfolder = "topics"\n'
        (folder / "shoal.toml").write_text(f"{own}{entry}\n")
        (folder / "guest.toml").write_text(f"[dht]\n{entry}\n")
        yield folder


def test_a_session(network: Path) -> None:
    made = run("topic", "create", "news", folder=network)
    assert made.returncode == 0, made.stderr
    cid = made.stdout.strip()
    assert re.fullmatch("zdpu[0-9A-Za-z]+", cid)
    subscriber = ("topic", "subscribe", cid, "--start", "earliest", "--config", "guest.toml")
    # The author is there first: a tree that has none looks for it every ten seconds, which is what
    # tests/system/test_topics.py is about.
    with Running("topic", "publish", cid, folder=network) as publisher:
        publisher.wait_for(lambda: publisher.err)
        with Running(*subscriber, "--count", "3", "--json", folder=network) as events:
            events.wait_for(lambda: events.err == [f"subscribed to {cid} (news)"])
            publisher.say("one\ntwo \x1b[2J\nthree\n")
            assert events.end() == 0, events.err
            publisher.hang_up()
            assert publisher.end() == 0, publisher.err
            assert publisher.err == [f"publishing to {cid} (news)"]
            published = publisher.out
        told = [json.loads(line) for line in events.out]
        assert [line["cid"] for line in told] == published
        assert [line["text"] for line in told] == ["one", "two \x1b[2J", "three"]
        assert set(told[0]) == {
            "topic", "cid", "parent", "author", "publisher", "created", "gap_before", "text",
        }  # fmt: skip
        assert told[1]["parent"] == published[0]

    last = ("--end", published[2], "--limit", "2", "--config", "guest.toml")
    read = run("topic", "read", cid, *last, folder=network)
    assert read.returncode == 0, read.stderr
    assert read.stderr == f"2 events of {cid}\n"
    newest, before = read.stdout.splitlines()
    assert re.fullmatch(f"2[0-9]{{3}}-.*Z {published[2]} three", newest)
    assert before.endswith(f"{published[1]} 'two \\x1b[2J'"), "it cannot steer the terminal"
    own = run("topic", "read", cid, "--json", folder=network)
    assert [json.loads(line)["cid"] for line in own.stdout.splitlines()] == published[::-1]


def test_bytes_that_are_no_text_come_as_base64(network: Path) -> None:
    made = run("topic", "create", "x", "--json", "--anyone", folder=network)
    line = json.loads(made.stdout)
    assert line["name"] == "x"
    with Running(
        "topic", "publish", line["cid"], "--json", "--replicas", "0", folder=network
    ) as publisher:
        assert publisher.process.stdin is not None
        publisher.process.stdin.buffer.write(b"\xff\xfe\n")  # type: ignore[attr-defined]
        publisher.process.stdin.flush()
        publisher.wait_for(lambda: publisher.out)
        event = json.loads(publisher.out[0])
        assert event["base64"] == "//4="
        assert event["author"] == event["publisher"] == line["author"]
        assert publisher.end(signal.SIGINT) == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("create", "x", "--anyone", "--publisher", "x"), "give one or the other"),
        (("create", "x", "--publisher", "x"), "'x' is not a secp256k1 peer id"),
        (("publish", "news"), "'news' is not the CID of a topic"),
        (("read", MISSING), f"topic {MISSING}: neither this node nor the DHT knows it"),
        (("subscribe", MISSING), f"topic {MISSING}: neither this node nor the DHT knows it"),
    ],
)
def test_what_is_wrong_is_one_line(
    network: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    complaint: str,
) -> None:
    monkeypatch.chdir(network)
    assert ends("topic", *arguments) == 2
    printed = capsys.readouterr()
    assert complaint in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_a_node_without_a_dht_is_told_what_to_add(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shoal.toml").write_text("")
    assert ends("topic", "create", "x", "--config", str(tmp_path / "shoal.toml")) == 2
    complaint = "this node is not in the DHT: add [dht] to its network file"
    assert complaint in capsys.readouterr().err
