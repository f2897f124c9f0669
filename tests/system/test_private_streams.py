"""A stream that is not everybody's, over real processes and an embedded registry."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from shoal.base.ids import KEYS_PARTITION, parse_stream_id, show_node_id
from shoal.identity import (
    PrivateKey,
    ScryptCost,
    SeededEntropy,
    SystemEntropy,
    create_keystore,
    show_peer_id,
)
from shoal.identity.group_key_file import read_group_keys
from shoal.identity.stream_message import ENCRYPTED, decode_body
from shoal.storage.store import Store
from tests.cli.test_app import ends
from tests.node.network import free_port
from tests.system.processes import Running, run

pytest.importorskip("pyrevm", reason="no EVM is made for this Python")

NAMES = ("alice", "server", "bob", "late", "outsider")
KEYS = {name: PrivateKey.generate(SeededEntropy(f"process {name}")) for name in NAMES}
IDS = {name: show_node_id(key.address) for name, key in KEYS.items()}
PEERS = {name: show_peer_id(key.public.peer_id) for name, key in KEYS.items()}
STREAM = f"{IDS['alice']}/private"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keys and network files of everybody. One process is tracker and storage node."""
    monkeypatch.chdir(tmp_path)
    address = f"ws://127.0.0.1:{free_port()}"
    cheap = ScryptCost(n=2, r=8, p=1)
    for name, key in KEYS.items():
        path = tmp_path / f"{name}.key"
        create_keystore(path, key, "", SeededEntropy(name), cost=cheap, allow_empty_passphrase=True)
        roles = f'listen = ["{address}"]\n[tracker]\n[storage]\nfolder = "store"\n'
        (tmp_path / f"{name}.toml").write_text(
            f'[node]\nkey = "{path.name}"\n{roles if name == "server" else ""}'
            f'[[trackers]]\nid = "{IDS["server"]}"\naddresses = ["{address}"]\n'
            f'[[storage_nodes]]\nid = "{IDS["server"]}"\naddresses = ["{address}"]\n'
            '[registry]\nfolder = "registry"\npoll_s = 0.05\n'
        )
    return tmp_path


def as_alice(*arguments: str) -> None:
    assert ends(*arguments, "--config", "alice.toml") == 0


def contents(lines: list[str]) -> list[object]:
    return [json.loads(line)["content"] for line in lines]


def test_a_revoked_reader_reads_nothing_new_and_a_late_one_all_of_it(folder: Path) -> None:
    as_alice("registry", "deploy")
    as_alice("stream", "create", "/private", "--storage", IDS["server"])
    as_alice("stream", "grant", "/private", "subscribe", PEERS["bob"], PEERS["late"])
    with Running("serve", "--config", "server.toml", folder=folder) as server:
        server.wait_for(lambda: server.out)
        with (
            Running("stream", "subscribe", STREAM, "--config", "bob.toml", folder=folder) as bob,
            Running(
                "stream", "publish", STREAM, "--durable", "--config", "alice.toml", folder=folder
            ) as alice,
        ):
            bob.wait_for(lambda: bob.err)  # it says that it is in
            alice.say("before\n")
            bob.wait_for(lambda: contents(bob.out) == ["before"])
            as_alice("stream", "revoke", "/private", "subscribe", IDS["bob"])
            # She hears of it within the staleness bound, and takes another key at once.
            own_keys = folder / "alice.key.streams"
            alice.wait_for(lambda: len(read_group_keys(own_keys, KEYS["alice"])) == 2)
            alice.say("after\n")
            alice.hang_up()
            assert alice.end() == 0
            bob.end(signal.SIGINT)
            assert contents(bob.out) == ["before"]
        # Nobody is there but the storage node, which has no key.
        done = run("stream", "resend", STREAM, "--json", "--config", "late.toml", folder=folder)
        assert (done.returncode, contents(done.stdout.splitlines())) == (0, ["before", "after"])
        done = run("stream", "resend", STREAM, "--config", "outsider.toml", folder=folder)
        assert done.returncode != 0
        assert done.stdout == ""
        assert server.end(signal.SIGTERM) == 0
    with Store(folder / "store", SystemEntropy()) as store:
        stored = [
            decode_body(row.signed)
            for partition in (0, KEYS_PARTITION)
            for page in store.range(parse_stream_id(STREAM), partition)
            for row in page
        ]
    assert len([body for body in stored if body.content_type == ENCRYPTED]) == 2
    assert not [body for body in stored if b"before" in body.content or b"after" in body.content]
    assert len({body.content[:16] for body in stored if body.content_type == ENCRYPTED}) == 2
