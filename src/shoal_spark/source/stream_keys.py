"""The keys of a stream that is encrypted, from the keystore of somebody who may read it.

`keystore` names a keystore, as nodes have one, and the node's group keys lie beside it. Only the
driver opens them. With each task go the group keys of the stream that it reads: no other stream's,
and never the private key. The node keeps its file current, so every batch looks again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import msgspec

from shoal.base.errors import DecryptionFailed
from shoal.base.ids import MessageId, NodeId, StreamId
from shoal.identity import PrivateKey, open_keystore
from shoal.identity.group_key import GroupKey, group_key_path, read_group_keys, sealed_with
from shoal.identity.secret_sources import read_secret
from shoal_spark.source.options import KeystoreOption


class StreamKey(msgspec.Struct, frozen=True):
    """What a task needs to open one publisher's messages."""

    publisher: bytes
    secret: bytes

    def __repr__(self) -> str:
        """Nothing of the key."""
        return "StreamKey(…)"


def read_stream_keys(option: KeystoreOption | None, stream: StreamId) -> tuple[StreamKey, ...]:
    """The group keys of one stream; KeystoreError if the keystore cannot be opened."""
    if option is None:
        return ()
    keys = read_group_keys(group_key_path(option.path()), _owner(option))
    return tuple(
        StreamKey(key.publisher, key.secret_bytes()) for key in keys if key.stream == stream
    )


class Opener:
    """Opens what is sealed in a stream, on an executor."""

    def __init__(self, stream: StreamId, keys: Iterable[StreamKey]) -> None:
        opened = [GroupKey(stream, NodeId(key.publisher), key.secret) for key in keys]
        self._keys = {key.id: key for key in opened}

    def open(self, id: MessageId, sealed: bytes) -> tuple[int, bytes]:
        """What the content is, and the content; DecryptionFailed says what is missing."""
        name = sealed_with(sealed)
        key = self._keys.get(name or b"")
        if key is None:
            shown = "too short for anything sealed" if name is None else f"key {name.hex()}"
            raise DecryptionFailed(
                f"its content is encrypted ({shown}), and the keystore does not have the key:"
                " name one of somebody who may read the stream (option 'keystore')"
            )
        return key.open(id, sealed)


@lru_cache(maxsize=4)
def _owner(option: KeystoreOption) -> PrivateKey:
    """Opening takes a third of a second, on purpose: once in a process."""
    source = option.passphrase
    passphrase = "" if source is None else read_secret("passphrase", source, Path(), os.environ)
    return open_keystore(option.path(), passphrase)
