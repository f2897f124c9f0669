"""`shoal storage`: a store is read, put right, and left."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.base.ids import MessageId, StreamId
from shoal.identity import (
    PrivateKey,
    ScryptCost,
    SeededEntropy,
    SystemEntropy,
    create_keystore,
)
from shoal.identity.message_body import Body, encode_body
from shoal.node import Node, load_network_file
from shoal.protocols.streams.signed_message import VerifiedMessage
from shoal.storage.message_store.layout import OWN, entry_key, place_of, tail_of
from shoal.storage.message_store.store import Store
from shoal.storage.message_store.store_types import ReplicaRow
from tests.cli.test_app import ends
from tests.node.network import free_port
from tests.system.processes import run

ALICE = PrivateKey.generate(SeededEntropy("alice"))
STREAM = StreamId(f"0x{ALICE.address.hex()}/city/vehicles")
START_MS = 1_767_225_600_000
START_NS = START_MS * 1_000_000
COUNT = 30
PLACE = place_of(0, 0)


def signed(number: int, key: PrivateKey = ALICE) -> VerifiedMessage:
    id = MessageId(STREAM, 0, START_MS + number, 0, ALICE.address, "c")
    body = encode_body(Body(id, None, 0, b"%d" % number))
    return VerifiedMessage(id, None, 0, b"%d" % number, key.sign(body) + body)


SENT = [signed(number) for number in range(COUNT)]


def change(folder: Path, work: Callable[[Any, Any], None]) -> None:
    """What a disk does to a store."""
    with Store(folder, SystemEntropy()) as store:
        tables = store._database.tables
        store._database.write(lambda txn: work(txn, tables))


def body_of(number: int) -> Callable[[Any, Any], None]:
    def work(txn: Any, tables: Any) -> None:
        key = PLACE + tail_of(SENT[number].id)
        value = txn.get(key, db=tables.messages)
        txn.put(key, value[:-1] + bytes([value[-1] ^ 1]), db=tables.messages)

    return work


def row_of(number: int) -> Callable[[Any, Any], None]:
    def work(txn: Any, tables: Any) -> None:
        row = txn.pop(entry_key(OWN, PLACE, number + 1), db=tables.entries)
        txn.put(entry_key(OWN, PLACE, 2**40), row, db=tables.entries)

    return work


def key_of(number: int) -> Callable[[Any, Any], None]:
    def work(txn: Any, tables: Any) -> None:
        key = PLACE + tail_of(SENT[number].id)
        value = txn.pop(key, db=tables.messages)
        txn.put(key[:30] + bytes([key[30] ^ 1]) + key[31:], value, db=tables.messages)

    return work


def copied(folder: Path, owner: Path, count: int = COUNT) -> None:
    """A store that follows another one."""
    with Store(owner, SystemEntropy()) as one, Store(folder, SystemEntropy()) as other:
        page = one.log_read(one.log, STREAM, 0, 0, count)
        by_id = {message.id: message for message in SENT}
        rows = [ReplicaRow(row.seq, row.ingest_ns, row.id, by_id[row.id]) for row in page.rows]
        other.append_replica(one.log, STREAM, 0, rows, START_NS)


@pytest.fixture
def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Network files of two storage nodes that know each other; the first has a store."""
    ids, ports = {}, {}
    cost = ScryptCost(n=2, r=1, p=1)
    for name in ("one", "two"):
        entropy = SeededEntropy(name)
        key = PrivateKey.generate(entropy)
        create_keystore(
            tmp_path / f"{name}.key", key, "", entropy, cost=cost, allow_empty_passphrase=True
        )
        ids[name], ports[name] = f"0x{key.address.hex()}", free_port()
    common = "".join(
        f'[[storage_nodes]]\nid = "{ids[name]}"\naddresses = ["ws://127.0.0.1:{ports[name]}"]\n'
        for name in ids
    )
    for name in ids:
        (tmp_path / f"{name}.toml").write_text(
            f'[node]\nkey = "{name}.key"\nlisten = ["ws://127.0.0.1:{ports[name]}"]\n'
            f'[tracker]\n[storage]\nfolder = "{name}"\n{common}'
            f'[[streams]]\nid = "*"\nstorage = ["{ids["one"]}", "{ids["two"]}"]\n'
        )
    monkeypatch.chdir(tmp_path)
    with Store(tmp_path / "one", SystemEntropy()) as store:
        store.append(SENT, START_NS)
    return tmp_path


def verified(capsys: pytest.CaptureFixture[str], folder: str = "one") -> tuple[int, Any]:
    capsys.readouterr()
    code = ends("storage", "verify", folder, "--json")
    return code, json.loads(capsys.readouterr().out)


def test_a_whole_store_is_verified(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = verified(capsys)
    assert (code, said["rows"], said["damaged"], said["bad"]) == (0, COUNT, 0, [])
    assert said["pages"] == "all as they should be"
    assert ends("storage", "verify", "--config", "one.toml") == 0
    assert "30 rows, 0 damaged" in capsys.readouterr().err
    with Store(town / "one", SystemEntropy()) as store:  # as if a node ran
        done = run("storage", "verify", "one", "--json", folder=town)
        said = json.loads(done.stdout)
        assert (done.returncode, said["log"], said["rows"]) == (0, str(store.log), COUNT)
        assert said["pages"].startswith("not checked")


@pytest.mark.parametrize("damage", [body_of(4), row_of(4), key_of(4)])
def test_what_is_damaged_is_named(
    town: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Any, Any], None]
) -> None:
    change(town / "one", damage)
    code, said = verified(capsys)
    assert (code, said["rows"], said["damaged"]) == (1, COUNT, 1)
    (row,) = said["bad"]
    assert (row["stream"], row["partition"], row["seq"], row["own"]) == (STREAM, 0, 5, True)
    assert ends("storage", "verify", "one") == 1
    assert "run `shoal storage repair`" in capsys.readouterr().err


def test_a_signature_of_somebody_else_is_found(
    town: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A CRC says that it is what was written, not that it was right."""
    with Store(town / "one", SystemEntropy()) as store:
        store.append([signed(99, PrivateKey.generate(SeededEntropy("mallory")))], START_NS)
    code, said = verified(capsys)
    assert (code, said["damaged"], said["bad"][0]["seq"]) == (1, 1, COUNT + 1)
    assert "signature" in said["bad"][0]["problem"]


def test_what_needs_no_other_node_is_put_right(
    town: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(town / "one", row_of(4))
    assert ends("storage", "repair", "--config", "one.toml") == 0
    assert "were put right without others" in capsys.readouterr().err
    with Store(town / "one", SystemEntropy()) as store:
        store.check_invariants()
        assert [row.seq for row in store.log_read(store.log, STREAM, 0, 0, 99).rows][4] == 5


def test_damaged_rows_are_fetched_from_another_storage_node(
    town: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied(town / "two", town / "one")
    for number in (4, 5, 20):
        change(town / "one", body_of(number))
    change(town / "one", key_of(7))
    assert verified(capsys)[1]["damaged"] == 4

    async def main() -> int:
        async with Node.open(load_network_file(town / "two.toml")):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "shoal.cli"),
                *("storage", "repair", "--config", "one.toml"),
                stdout=asyncio.subprocess.DEVNULL,
            )
            return await process.wait()

    assert asyncio.run(main()) == 0
    assert verified(capsys)[0] == 0
    with Store(town / "one", SystemEntropy()) as store:
        rows = store.log_read(store.log, STREAM, 0, 0, 99).rows
        assert [row.signed for row in rows] == [message.signed for message in SENT]
        store.check_invariants()


def test_rows_that_nobody_has_are_said(
    town: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.cli.commands import storage

    monkeypatch.setattr(storage, "STUCK_S", 0.3)
    change(town / "one", body_of(4))
    assert ends("storage", "repair", "--config", "one.toml", "--json") == 1
    said = json.loads(capsys.readouterr().out)
    assert [row["seq"] for row in said["bad"]] == [5]


def test_a_replica_that_is_damaged_is_cut_and_copied_again(
    town: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied(town / "two", town / "one")

    def work(txn: Any, tables: Any) -> None:
        row = txn.pop(entry_key(1, PLACE, 11), db=tables.entries)
        txn.put(entry_key(1, PLACE, 2**40), row, db=tables.entries)

    change(town / "two", work)
    code, said = verified(capsys, "two")
    assert (code, said["bad"][0]["own"]) == (1, False)
    assert ends("storage", "repair", "--config", "two.toml") == 0
    with Store(town / "two", SystemEntropy()) as store:
        store.check_invariants()
        assert sorted(head.last for head in store.heads(STREAM, 0).values()) == [10, COUNT]
    copied(town / "two", town / "one")
    with Store(town / "two", SystemEntropy()) as store:
        store.check_invariants()
        assert [head.last for head in store.heads(STREAM, 0).values()] == [COUNT, COUNT]


def test_a_drained_node_may_go(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> tuple[int, dict[str, Any]]:
        async with Node.open(load_network_file(town / "two.toml")):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "shoal.cli"),
                *("storage", "drain", "--config", "one.toml", "--json"),
                stdout=asyncio.subprocess.PIPE,
            )
            out, _ = await process.communicate()
            return process.returncode or 0, json.loads(out)

    code, said = asyncio.run(main())
    assert (code, said["rows"], said["uncopied"], said["lacking"]) == (0, COUNT, 0, [])
    with Store(town / "two", SystemEntropy()) as store:
        found = {row.signed for page in store.range(STREAM, 0) for row in page}
    assert found == {message.signed for message in SENT}, "and not only as it said"


def test_a_node_whose_rows_nobody_copies_is_not_drained(
    town: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.cli.commands import storage

    monkeypatch.setattr(storage, "STUCK_S", 0.3)
    assert ends("storage", "drain", "--config", "one.toml") == 1  # the other one is away
    assert "partition 0: 30 rows have no copy: the other storage nodes" in capsys.readouterr().err
    alone = (town / "one.toml").read_text()
    storages = alone[alone.index("storage = [") :]
    (town / "one.toml").write_text(alone.replace(storages, storages.split(",")[0] + "]\n"))
    assert ends("storage", "drain", "--config", "one.toml") == 1
    assert "is named for it: add one to `storage`" in capsys.readouterr().err


def test_a_damaged_store_is_not_drained(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(town / "one", body_of(4))
    assert ends("storage", "drain", "--config", "one.toml") == 2
    assert "run `shoal storage repair` first" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["repair", "drain"])
def test_a_store_that_is_in_use_is_left_alone(
    town: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with Store(town / "one", SystemEntropy()):
        assert ends("storage", command, "--config", "one.toml") == 2
    assert "stop the node first" in capsys.readouterr().err


def test_the_doctor_reads_the_newest_rows(town: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said() -> dict[str, Any]:
        ends("doctor", "--config", "one.toml", "--json")
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        (found,) = [line for line in lines if line["what"] == "store"]
        return dict(found)

    assert (said()["state"], said()["found"].split(" in ")[0]) == ("ok", "the newest 30 rows")
    change(town / "one", body_of(4))
    assert said()["state"] == "problem"
    assert "1 of the newest 30 rows" in said()["found"]


def test_the_folder_of_up_has_a_store_too(
    town: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (town / "shoal.toml").write_text("[tracker]\n")
    assert ends("storage", "verify") == 2
    assert "shoal.toml has no [storage]" in capsys.readouterr().err
    (town / "shoal-data").mkdir()
    (town / "one").rename(town / "shoal-data" / "one")
    (town / "one.key").rename(town / "shoal-data" / "one.key")
    (town / "one.toml").rename(town / "shoal-data" / "up.toml")
    assert ends("storage", "verify") == 0
    assert "30 rows, 0 damaged" in capsys.readouterr().err
