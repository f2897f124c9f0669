"""`shoal backup` and `shoal restore`: what is in them, and what a damaged one says. That a backup
of a node that runs is whole, `test_up.py` shows."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from shoal.base.ids import NodeId
from shoal.cli.commands.backup_archive import BACKUP_FORMAT, FILES, MANIFEST, read_manifest
from shoal.config.network_file import NetworkFile, load_network_file
from shoal.identity import (
    PrivateKey,
    ScryptCost,
    SeededEntropy,
    SystemEntropy,
    create_keystore,
    open_keystore,
)
from shoal.node.roles.storage import open_store as node_store
from shoal.storage.errors import StoreGone
from shoal.storage.key_values import KeyValueFile
from shoal.storage.message_store.store import Store
from shoal.storage.message_store.store_types import LogHead, LogId, Stored
from tests.cli.test_app import ends
from tests.storage.stage import START_NS, STREAM, message, messages

CHEAP = ScryptCost(n=2, r=1, p=1)
KEY = b"topics\0key"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PrivateKey:
    """The folder of a node with a key, a secret elsewhere, and topics."""
    entropy = SeededEntropy("backup")
    key = PrivateKey.generate(entropy)
    folder, elsewhere = tmp_path / "node", tmp_path / "secrets"
    folder.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(folder)
    create_keystore(folder / "node.key", key, "open sesame", entropy, cost=CHEAP)
    (elsewhere / "passphrase").write_text("open sesame")
    (folder / "shoal.toml").write_text(
        f'[node]\nkey = "node.key"\npassphrase = "file:{elsewhere}/passphrase"\n'
        '[dht]\n[topics]\nfolder = "topics"\n'
    )
    file = KeyValueFile(folder / "topics", key.address)
    file.put_all([(KEY, b"value" * 1000)])
    file.close()
    return key


def stored(folder: Path, owner: NodeId) -> bytes | None:
    file = KeyValueFile(folder, owner)
    try:
        return file.get(KEY)
    finally:
        file.close()


def test_what_is_restored_is_what_there_was(
    node: PrivateKey, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends("backup", "../one.tar") == 0
    said = capsys.readouterr()
    assert "node.key" in said.out
    assert "4 files, all checked" in said.err
    new = tmp_path / "new"
    assert ends("restore", "../one.tar", str(new)) == 0
    assert open_keystore(new / "node.key", "open sesame").address == node.address
    assert (new / "node.key").stat().st_mode & 0o777 == 0o600
    assert (new / "shoal.toml").read_text() == Path("shoal.toml").read_text()
    assert stored(new / "topics", node.address) == b"value" * 1000
    restored = KeyValueFile(new / "topics", node.address)
    assert restored.restored, "it is a copy, and says so until its node has drawn conclusions"
    restored.close()
    assert sorted(file.name for file in (new / "topics").iterdir()) == [
        "data.mdb",
        "lock.mdb",
        "store.lock",
    ]
    # What was not beside the network file is told of, and not put anywhere by itself.
    was = tmp_path / "secrets" / "passphrase"
    now = new / "outside" / was.relative_to("/")
    assert now.read_text() == "open sesame"
    assert f"{was} was not in the folder, and is now {now}" in capsys.readouterr().err


def test_nothing_is_ever_overwritten(
    node: PrivateKey, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends("backup", "../one.tar") == 0
    assert ends("backup", "../one.tar") == 2
    assert "one.tar is there already" in capsys.readouterr().err
    before = Path("shoal.toml").read_text()
    assert ends("restore", "../one.tar") == 2
    assert "shoal.toml, node.key, topics/data.mdb would be overwritten" in capsys.readouterr().err
    assert Path("shoal.toml").read_text() == before
    assert not Path("outside").exists()
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["one.tar"]


@pytest.mark.parametrize("name", ["shoal.toml", "node.key", "topics/data.mdb"])
def test_a_damaged_file_is_named(
    node: PrivateKey, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert ends("backup", "../one.tar") == 0
    archive = tmp_path / "one.tar"
    with tarfile.open(archive) as tar:
        at = tar.getmember(FILES + name).offset_data + 100
    data = bytearray(archive.read_bytes())
    data[at] ^= 1
    archive.write_bytes(data)
    assert ends("restore", str(archive), str(tmp_path / "new")) == 1
    assert f"is damaged, nothing was restored: {name} not as written" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_an_archive_that_ends_too_early_names_what_is_missing(
    node: PrivateKey, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends("backup", "../one.tar") == 0
    archive = tmp_path / "one.tar"
    with tarfile.open(archive) as tar:
        cut = tar.getmember(FILES + "topics/data.mdb").offset
    for end in (cut, cut + 200, cut + 5_000):
        (tmp_path / "cut.tar").write_bytes(archive.read_bytes()[:end])
        assert ends("restore", str(tmp_path / "cut.tar"), str(tmp_path / "new")) == 1
        assert "topics/data.mdb not as written" in capsys.readouterr().err


def test_a_damaged_manifest_is_not_believed(
    node: PrivateKey, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends("backup", "../one.tar") == 0
    archive = tmp_path / "one.tar"
    archive.write_bytes(archive.read_bytes().replace(b'"node.key"', b'"mode.key"', 1))
    assert ends("restore", str(archive), str(tmp_path / "new")) == 1
    assert f"its {MANIFEST} is not as it was written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("manifest", "complaint"),
    [
        ({"format": BACKUP_FORMAT + 1}, f"has format {BACKUP_FORMAT + 1}, this Shoal reads up to"),
        ({"format": BACKUP_FORMAT}, f"its {MANIFEST} makes no sense"),
        ([], f"its {MANIFEST} makes no sense"),
        (None, "is no backup of Shoal"),
    ],
)
def test_what_is_no_backup_of_ours_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], manifest: object, complaint: str
) -> None:
    archive = tmp_path / "other.tar"
    with tarfile.open(archive, "w") as tar:
        text = json.dumps(manifest).encode()
        info = tarfile.TarInfo("else" if manifest is None else MANIFEST)
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))
    assert ends("restore", str(archive), str(tmp_path / "new")) != 0
    assert complaint in capsys.readouterr().err


def test_an_archive_does_not_choose_where_it_goes(
    node: PrivateKey, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever made it may have been anybody."""
    import msgspec

    assert ends("backup", "../one.tar") == 0
    manifest = read_manifest(tmp_path / "one.tar")
    evil = msgspec.structs.replace(manifest.entries[0], name="../escaped")
    manifest = msgspec.structs.replace(manifest, entries=[evil]).sealed()
    with tarfile.open(tmp_path / "evil.tar", "w") as tar:
        text = msgspec.json.encode(manifest)
        for name, data in (
            (MANIFEST, text),
            (FILES + "../escaped", Path("shoal.toml").read_bytes()),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    assert ends("restore", str(tmp_path / "evil.tar"), str(tmp_path / "new")) == 1
    assert "'../escaped', which is no file of a folder" in capsys.readouterr().err
    assert not (tmp_path / "escaped").exists()


def test_what_the_network_file_names_and_is_not_there_is_told(
    node: PrivateKey, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("node.key").unlink()
    assert ends("backup", "../one.tar") == 2
    assert "shoal.toml names node.key, which is not there" in capsys.readouterr().err
    assert not Path("../one.tar").exists()


def test_a_damaged_store_makes_no_backup(
    node: PrivateKey, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path("topics/data.mdb")
    data = bytearray(file.read_bytes())
    data[8192:] = b"\xff" * (len(data) - 8192)
    file.write_bytes(data)
    assert ends("backup", "../one.tar") != 0
    assert "data.mdb" in capsys.readouterr().err
    assert not Path("../one.tar").exists()


# A store of messages


def open_store(network: NetworkFile) -> Store:
    """As a node does at its start."""
    assert network.storage is not None
    return node_store(network, network.storage, SystemEntropy())


def a_store(folder: Path, count: int, begin: int = 0) -> LogId:
    """A store of a storage node, with so many messages more."""
    with Store(folder, SystemEntropy()) as store:
        store.append(messages(count, begin), START_NS)
        return store.log


@pytest.fixture
def storing(node: PrivateKey) -> Path:
    Path("shoal.toml").write_text(Path("shoal.toml").read_text() + '[storage]\nfolder = "store"\n')
    return Path("store")


def test_a_restored_store_goes_on_under_a_new_log(
    storing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = a_store(storing, 300)
    assert ends("backup", "../one.tar") == 0
    a_store(storing, 300, begin=300)
    capsys.readouterr()
    assert ends("restore", "../one.tar", str(tmp_path / "new")) == 0
    told = capsys.readouterr().err
    with Store(tmp_path / "new" / "store", SystemEntropy()) as store:
        new = store.log
        assert new != old
        assert store.heads(STREAM, 0) == {old: LogHead(1, 300), new: LogHead(1, 300)}
        assert store.append([message(999)], START_NS) == [Stored(301)]
        store.check_invariants()
    assert f"{tmp_path / 'new' / 'store'} goes on under a new log, {new}: log {old} can be" in told
    names = sorted(file.name for file in (tmp_path / "new" / "store").iterdir())
    assert names == ["data.mdb", "lock.mdb", "store.lock"]
    with Store(storing, SystemEntropy()) as store:
        assert store.log == old, "the node that runs is not touched"


def test_a_backup_without_the_store_is_none(
    storing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its disk is not mounted, say: the node does not make another one either."""
    marker = Path("node.key.stores")
    marker.write_text("elsewhere\n")
    assert ends("backup", "../before.tar") == 0, "the node never ran"
    a_store(storing, 3)
    marker.write_text("store\n")
    storing.rename("unmounted")
    capsys.readouterr()
    assert ends("backup", "../one.tar") == 2
    assert "there is no store in" in (told := capsys.readouterr().err)
    assert "mount its disk" in told
    assert not Path("../one.tar").exists()
    config = Path("shoal.toml")
    config.write_text(config.read_text() + "create = true\n")
    assert ends("backup", "../one.tar") == 0, "its folder is made anew where it is not there"


def test_a_restored_node_makes_no_store_in_place_of_the_one_that_was_elsewhere(
    storing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was not beside the network file is not put there: until it is, there is no store."""
    config = Path("shoal.toml")
    config.write_text(config.read_text().replace('"store"', f'"{tmp_path / "data" / "store"}"'))
    (tmp_path / "data").mkdir()
    with open_store(load_network_file(config)) as store:
        store.append(messages(3), START_NS)
    assert ends("backup", "../one.tar") == 0
    (tmp_path / "data" / "store").rename(tmp_path / "lost")
    assert ends("restore", "../one.tar", str(tmp_path / "new")) == 0
    assert "was not in the folder" in capsys.readouterr().err
    with pytest.raises(StoreGone, match="this key has had one there"):
        open_store(load_network_file(tmp_path / "new" / "shoal.toml"))


def test_a_store_that_was_copied_back_by_hand_gets_a_new_log(
    storing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = a_store(storing, 3)
    assert ends("storage", "new-log") == 0
    said = capsys.readouterr().out
    with Store(storing, SystemEntropy()) as store:
        second = store.log
        assert list(store.heads(STREAM, 0)) == [second], "what it says of the old one is not known"
        assert ends("storage", "new-log", "store") == 2
        assert "open in this process" in (told := capsys.readouterr().err)
        assert "stop the node first" in told
    assert said == f"the store goes on under log {second}; log {old} is not known here any more\n"
    assert ends("storage", "new-log", "--keep-old", "store") == 0
    with Store(storing, SystemEntropy()) as store:
        assert store.heads(STREAM, 0) == {second: LogHead(1, 3), store.log: LogHead(1, 3)}
    assert ends("storage", "new-log", "nowhere") == 2
    assert "there is no store in nowhere" in capsys.readouterr().err
    assert not Path("nowhere").exists()
