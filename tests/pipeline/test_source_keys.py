"""Encrypted streams in the source: a keystore on the driver, one stream's keys on executors."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from shoal.base.errors import ConfigError, UsageError, WrongPassphrase
from shoal.base.ids import MessageId, StreamId
from shoal.identity import PrivateKey, ScryptCost, SeededEntropy, create_keystore
from shoal.identity.group_key import GroupKey, Sealer, group_key_path, write_group_keys
from shoal.identity.message_body import JSON, Body, encode_body
from shoal.protocols.streams.signed_message import VerifiedMessage
from shoal_spark.source.options import SourceOptions, parse_options
from shoal_spark.source.readers import BatchReader, RangePartition
from shoal_spark.source.rows import BadRecord
from tests.support.log_server import ALICE, BOB, START_MS, STREAM, LogServer

ENTROPY = SeededEntropy("keys")
KEY = GroupKey.generate(STREAM, ALICE.address, ENTROPY)
OTHER = GroupKey.generate(StreamId(f"{STREAM}/other"), ALICE.address, ENTROPY)
LATER = GroupKey.generate(STREAM, ALICE.address, ENTROPY)


def sealed(number: int, sealer: Sealer) -> VerifiedMessage:
    id = MessageId(STREAM, 0, START_MS + number, 0, ALICE.address, "c1")
    content_type, content = sealer.seal(id, JSON, b'{"number":%d}' % number)
    body = encode_body(Body(id, None, content_type, content))
    return VerifiedMessage(id, None, content_type, content, ALICE.sign(body) + body)


@pytest.fixture
def keystore(tmp_path: Path) -> Path:
    """Bob's, who may read."""
    path = tmp_path / "bob.key"
    create_keystore(path, BOB, "p", ENTROPY, cost=ScryptCost(n=2, r=1, p=1))
    write_group_keys(group_key_path(path), [KEY, OTHER], BOB, ENTROPY)
    (tmp_path / "passphrase").write_text("p")
    return path


def options_of(server: LogServer, keystore: Path | None, /, **more: str) -> SourceOptions:
    given = {"servers": server.address, "stream": STREAM, **more}
    if keystore is not None:
        passphrase = keystore.with_name("passphrase")
        given |= {"keystore": f"file:{keystore}", "passphrase": f"file:{passphrase}"}
    return parse_options(given, streaming=False)


def read(options: SourceOptions) -> list[tuple[str | None, str | None]]:
    """Value and error of every row, as executors read them."""
    found: list[tuple[str | None, str | None]] = []
    for task in BatchReader(options).partitions():
        for batch in BatchReader(options).read(pickle.loads(pickle.dumps(task))):
            found += zip(
                batch.column("value").to_pylist(), batch.column("error").to_pylist(), strict=True
            )
    return found


def test_executors_read_with_the_keys_of_their_stream_and_get_no_others(
    tmp_path: Path, keystore: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogServer(tmp_path / "a") as server:
        server.append([sealed(1, Sealer(KEY)), sealed(2, Sealer(LATER))])
        options = options_of(server, keystore)
        opened, locked = read(options)
        assert opened == ('{"number":1}', None)
        assert locked[0] is None
        assert locked[1] is not None
        assert LATER.id.hex() in locked[1]
        (task,) = BatchReader(options).partitions()
        assert isinstance(task, RangePartition)
        sent = pickle.dumps(task) + pickle.dumps(options)
        assert KEY.secret_bytes() in sent
        for secret in (OTHER.secret_bytes(), BOB.secret_bytes()):
            assert secret not in sent
        assert KEY.secret_bytes().hex() not in repr(task.keys)
        write_group_keys(group_key_path(keystore), [KEY, LATER], BOB, ENTROPY)
        assert [error for _, error in read(options)] == [None, None], "what is new is found"
        monkeypatch.setenv("KEYSTORE", str(keystore))
        given = {"keystore": "env:KEYSTORE", "passphrase": f"file:{tmp_path / 'passphrase'}"}
        assert read(options_of(server, None, **given))[0] == ('{"number":1}', None)


def test_without_the_key_it_is_a_row_with_an_error_or_the_end(
    tmp_path: Path, keystore: Path
) -> None:
    with LogServer(tmp_path / "a") as server:
        server.append([sealed(1, Sealer(LATER))])
        for chosen in (None, keystore):
            ((value, error),) = read(options_of(server, chosen))
            assert value is None
            assert error is not None
            assert "its content is encrypted" in error
        with pytest.raises(BadRecord, match="its content is encrypted"):
            read(options_of(server, keystore, mode="FAILFAST"))
        (tmp_path / "passphrase").write_text("wrong")
        another = tmp_path / "carol.key"
        carol = PrivateKey.generate(ENTROPY)
        create_keystore(another, carol, "p", ENTROPY, cost=ScryptCost(n=2, r=1, p=1))
        with pytest.raises(WrongPassphrase):
            read(options_of(server, another))


def test_a_raw_key_is_refused_and_not_repeated() -> None:
    given = {"servers": "http://127.0.0.1:1", "stream": STREAM}
    raw = KEY.secret_bytes().hex()
    with pytest.raises(ConfigError) as refused:
        parse_options({**given, "keystore": raw}, streaming=False)
    assert raw not in str(refused.value)
    with pytest.raises(UsageError, match="give option 'keystore' too"):
        parse_options({**given, "passphrase": "env:P"}, streaming=False)
