"""`shoal backup` and `shoal restore`: what is in them, and what a damaged one says. That a backup
of a node that runs is whole, `test_up.py` shows."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from shoal.base.ids import NodeId
from shoal.cli.backup.archive import BACKUP_FORMAT, FILES, MANIFEST, read_manifest
from shoal.identity import PrivateKey, ScryptCost, SeededEntropy, create_keystore, open_keystore
from shoal.storage.key_values import KeyValueFile
from tests.cli.test_app import ends

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
