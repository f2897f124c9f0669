"""Group keys at rest: what was written is read, by its owner, or nothing is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import KeystoreError
from shoal.base.ids import NodeId, StreamId
from shoal.identity import PrivateKey, SeededEntropy
from shoal.identity import group_key as files
from shoal.identity.group_key import GroupKey, group_key_path, read_group_keys, write_group_keys

GOLDEN = Path(__file__).parent.parent / "golden" / "group-keys-v1"
OWNER = PrivateKey.generate(SeededEntropy("owner of the golden file"))


def keys(count: int) -> list[GroupKey]:
    stream = StreamId("0x" + "11" * 20 + "/private")
    return [
        GroupKey(stream, NodeId(bytes([number]) * 20), bytes([number]) * 32)
        for number in range(count)
    ]


def names(found: list[GroupKey]) -> list[bytes]:
    return [key.id for key in found]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = group_key_path(tmp_path / "node.key")
    assert path == tmp_path / "node.key.streams"
    assert read_group_keys(path, OWNER) == []
    entropy = SeededEntropy(1)
    for count in (2, 0, 5):
        write_group_keys(path, keys(count), OWNER, entropy)
        found = read_group_keys(path, OWNER)
        assert names(found) == names(keys(count))
        assert [key.secret_bytes() for key in found] == [k.secret_bytes() for k in keys(count)]
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["node.key.streams"]
    assert keys(5)[3].secret_bytes() not in path.read_bytes()


def test_of_too_many_the_newest_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "GROUP_KEYS_MAX", 3)
    write_group_keys(tmp_path / "k", keys(5), OWNER, SeededEntropy(1))
    assert names(read_group_keys(tmp_path / "k", OWNER)) == names(keys(5)[2:])


def test_a_file_of_version_1_is_read(tmp_path: Path) -> None:
    path = tmp_path / "node.key.streams"
    path.write_bytes(GOLDEN.read_bytes())
    path.chmod(0o600)
    assert names(read_group_keys(path, OWNER)) == names(keys(3))


@given(st.data())
def test_any_changed_bit_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    raw = bytearray(GOLDEN.read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path_factory.getbasetemp() / "changed.streams"
    path.unlink(missing_ok=True)
    path.touch(0o600)
    path.write_bytes(raw)
    with pytest.raises(KeystoreError):
        read_group_keys(path, OWNER)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "holds no group keys"),
        (b"shoal group keys 1", "holds no group keys"),
        (b"shoal group keys \n", "holds no group keys"),
        (b"shoal group keys 2\nsealed", "format 2, this Shoal reads up to 1: upgrade"),
        (b"shoal group keys 1\nshort", "damaged"),
    ],
)
def test_what_is_no_such_file_is_named(tmp_path: Path, data: bytes, complaint: str) -> None:
    path = tmp_path / "file"
    path.touch(0o600)
    path.write_bytes(data)
    with pytest.raises(KeystoreError, match=complaint):
        read_group_keys(path, OWNER)


def test_another_owner_and_another_mode_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_group_keys(path, keys(1), OWNER, SeededEntropy(1))
    with pytest.raises(KeystoreError, match="was not written by 0x"):
        read_group_keys(path, PrivateKey.generate(SeededEntropy("other")))
    path.chmod(0o640)
    with pytest.raises(KeystoreError, match="chmod 600"):
        read_group_keys(path, OWNER)
    with pytest.raises(KeystoreError, match="cannot be written"):
        write_group_keys(tmp_path / "none" / "file", keys(1), OWNER, SeededEntropy(1))
