"""The group keys that a node holds, in a file beside its keystore.

A line of text with the format's number, then one seal of AES-256-GCM over all keys, under a key
derived from the node's private key. The line and the node's address are the associated data. The
file is replaced as a whole: what it holds is what it held before or all of the new. It spares
asking; whoever loses it finds the keys at storage nodes again, as far as they are kept there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Meta

from shoal.base.errors import DecryptionFailed, KeystoreError, NotFound
from shoal.base.ids import WireNodeId, WireStreamId, show_node_id
from shoal.base.units import MIB
from shoal.identity.cipher import CIPHER_KEY_BYTES, Cipher
from shoal.identity.entropy import Entropy
from shoal.identity.group_key import GROUP_KEY_BYTES, GroupKey
from shoal.identity.keys import PrivateKey
from shoal.identity.keystore_file import read_private, replace_private

GROUP_KEYS_FORMAT = 1
GROUP_KEYS_MAX = 4096  # the oldest are let go
SUFFIX = ".streams"

_LINE = b"shoal group keys "
_FILE_BYTES_MAX = 4 * MIB  # of 4,096 keys in streams with the longest names, a third of it


class _Kept(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    stream: WireStreamId
    publisher: WireNodeId
    secret: Annotated[bytes, Meta(min_length=GROUP_KEY_BYTES, max_length=GROUP_KEY_BYTES)]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[_Kept])


def group_key_path(keystore: Path) -> Path:
    """Where the group keys of a keystore's owner are."""
    return keystore.with_name(keystore.name + SUFFIX)


def read_group_keys(path: Path, owner: PrivateKey) -> list[GroupKey]:
    """All of them, oldest first; none if there is no file; KeystoreError if it is unusable."""
    try:
        data = read_private(path, _FILE_BYTES_MAX)
    except NotFound:
        return []
    line, newline, sealed = data.partition(b"\n")
    number = line.removeprefix(_LINE)
    if not newline or not line.startswith(_LINE) or not number.isdigit() or len(number) > 9:
        raise KeystoreError(f"{path} holds no group keys: move it away, a new one will be made")
    if int(number) > GROUP_KEYS_FORMAT:
        raise KeystoreError(
            f"{path} has format {int(number)}, this Shoal reads up to {GROUP_KEYS_FORMAT}:"
            " upgrade Shoal"
        )
    try:
        kept = _decoder.decode(_cipher(owner).open(sealed, _associated(line, owner)))
    except (DecryptionFailed, msgspec.MsgspecError):
        raise KeystoreError(
            f"{path} was not written by {show_node_id(owner.address)}, or is damaged: restore a"
            " backup, or move it away; what storage nodes keep of the keys is found again"
        ) from None
    return [GroupKey(one.stream, one.publisher, one.secret) for one in kept]


def write_group_keys(
    path: Path, keys: Sequence[GroupKey], owner: PrivateKey, entropy: Entropy
) -> None:
    """Replace the file, durably; of more than fit, the last ones are kept."""
    kept = [_Kept(k.stream, k.publisher, k.secret_bytes()) for k in keys[-GROUP_KEYS_MAX:]]
    line = _LINE + str(GROUP_KEYS_FORMAT).encode()
    sealed = _cipher(owner).seal(_encoder.encode(kept), _associated(line, owner), entropy)
    replace_private(path, line + b"\n" + sealed, unique=entropy.token(8).hex())


def _cipher(owner: PrivateKey) -> Cipher:
    info = b"shoal group keys at rest 1"
    return Cipher(HKDF(hashes.SHA256(), CIPHER_KEY_BYTES, None, info).derive(owner.secret_bytes()))


def _associated(line: bytes, owner: PrivateKey) -> bytes:
    return line + b"\0" + owner.address
