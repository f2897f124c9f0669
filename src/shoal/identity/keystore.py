"""A private key in a file, sealed with a passphrase.

passphrase --scrypt--> key --AES-256-GCM--> sealed secret. Everything else in the file (format,
address, kdf and its cost, salt, cipher) is the associated data of the seal: none of it can be
altered without the passphrase.

A seal that does not open says neither "wrong passphrase" nor "damaged file". The checksum over
the whole content decides: if it fails, the file is damaged (KeystoreError, before any costly
work); if it holds, the passphrase is wrong. Whoever forges the checksum, too, gets no further
than WrongPassphrase.

An empty passphrase protects nothing beyond the file's mode. It is refused, unless the caller asks
for it by name: nodes that start unattended have nobody to type one.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
import unicodedata
from pathlib import Path
from typing import Annotated, Literal, NoReturn, SupportsIndex

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from shoal.base.errors import (
    DecryptionFailed,
    IdentityError,
    KeystoreError,
    NotFound,
    UsageError,
    WrongPassphrase,
)
from shoal.base.ids import NodeId, parse_node_id, show_node_id
from shoal.base.units import KIB, MIB
from shoal.identity.entropy import Entropy
from shoal.identity.keys import SECRET_BYTES, PrivateKey

# AES-256-GCM with a random nonce in front: nonce (12) || ciphertext || tag (16).


CIPHER_KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
SEAL_OVERHEAD_BYTES = NONCE_BYTES + TAG_BYTES

# Nonces are random because several processes may share one key without talking to each other.
# After this many, over all of them, two are equal with a chance of 2^-33 (NIST SP 800-38D, 8.3),
# and a repeated nonce gives the key stream away: whoever owns a key replaces it well before.
SEALS_PER_KEY_MAX = 2**32


class Cipher:
    """Seals and opens under one key; kept for the key's life, since setting up costs as much."""

    __slots__ = ("_aead",)

    def __init__(self, key: bytes) -> None:
        """Take a 32-byte key; IdentityError for any other length."""
        if len(key) != CIPHER_KEY_BYTES:
            raise IdentityError(f"a cipher key has {CIPHER_KEY_BYTES} bytes, this has {len(key)}")
        self._aead = AESGCM(key)

    def seal(self, plaintext: bytes, associated: bytes, entropy: Entropy) -> bytes:
        """Encrypt plaintext, and bind it to the associated data, which is not included."""
        nonce = entropy.token(NONCE_BYTES)
        return nonce + self._aead.encrypt(nonce, plaintext, associated)

    def open(self, sealed: bytes, associated: bytes) -> bytes:
        """The plaintext; DecryptionFailed if key, sealed bytes or associated data differ."""
        if len(sealed) < SEAL_OVERHEAD_BYTES:
            raise DecryptionFailed(
                f"sealed data has at least {SEAL_OVERHEAD_BYTES} bytes, this has {len(sealed)}"
            )
        try:
            return self._aead.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], associated)
        except InvalidTag:
            raise DecryptionFailed(
                "wrong key, or the sealed bytes or their associated data were changed"
            ) from None

    def __repr__(self) -> str:
        """Nothing of the key."""
        return "Cipher(AES-256-GCM)"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse pickle and copy: a key must not travel inside some other object."""
        raise TypeError("a Cipher cannot be pickled or copied: make one where the key is")


# The file under a keystore: private from its first byte, whole or absent, never overwritten.


# Windows has neither meaningful mode bits nor directories that can be synced.
_POSIX = os.name == "posix"
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def read_private(path: Path, size_max: int) -> bytes:
    """All bytes of a file that only its owner can read; KeystoreError if others can, too."""
    try:
        # Without O_NONBLOCK, a named pipe put in place of the file would hang us.
        descriptor = os.open(path, _READ_FLAGS)
        try:
            _check_private(path, os.fstat(descriptor))  # of what we opened, not of the name
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(size_max + 1)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise NotFound(
            f"there is no keystore at {path}: check the path, or make one with `shoal up`"
        ) from None
    except OSError as error:
        raise KeystoreError(f"keystore {path} cannot be read: {error.strerror}") from error
    if len(data) > size_max:
        raise KeystoreError(f"{path} is no keystore: it has more than {size_max} bytes")
    return data


def _check_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise KeystoreError(f"{path} is no keystore: not a regular file")
    if _POSIX and status.st_mode & 0o077:
        raise KeystoreError(
            f"keystore {path} is open to others (mode {stat.S_IMODE(status.st_mode):04o}):"
            f" run `chmod 600 {shlex.quote(str(path))}`"
        )


def refuse_existing(path: Path) -> None:
    """KeystoreError if anything, even a dangling link, has this name."""
    if os.path.lexists(path):
        raise KeystoreError(
            f"{path} exists and is not overwritten, since the key in it would be lost:"
            " choose another path, or move it away"
        )


def create_private(path: Path, data: bytes, unique: str) -> None:
    """Write a new file, mode 0600, that survives power loss once this returns, or none at all."""
    refuse_existing(path)
    temporary = path.with_name(f".{path.name}.{unique}.tmp")
    try:
        try:
            _write_synced(temporary, data)
            _give_name(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except FileNotFoundError:
        raise KeystoreError(
            f"keystore {path} has no directory to be in:"
            f" run `mkdir -p {shlex.quote(str(path.parent))}`"
        ) from None
    except OSError as error:
        raise KeystoreError(f"keystore {path} cannot be written: {error.strerror}") from error
    try:
        _sync_directory(path.parent)
    except OSError as error:
        raise KeystoreError(
            f"keystore {path} is written, but its directory could not be synced"
            f" ({error.strerror}): copy it elsewhere before you rely on it"
        ) from error


def replace_private(path: Path, data: bytes, unique: str) -> None:
    """Write a file, mode 0600, in place of the one that is there, if any: one of them is whole,
    whatever happens. KeystoreError if that cannot be."""
    temporary = path.with_name(f".{path.name}.{unique}.tmp")
    try:
        try:
            _write_synced(temporary, data)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_directory(path.parent)
    except OSError as error:
        raise KeystoreError(f"{path} cannot be written: {error.strerror}") from error


def _write_synced(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, _CREATE_FLAGS, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _give_name(temporary: Path, path: Path) -> None:
    # A link and not a rename: as atomic, but it fails if another process took the name meanwhile.
    try:
        os.link(temporary, path)
    except FileExistsError:
        refuse_existing(path)
        raise
    except OSError:
        # A file system without hard links (some network mounts): the check, then the rename.
        refuse_existing(path)
        os.rename(temporary, path)


def _sync_directory(directory: Path) -> None:
    if not _POSIX:
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


KEYSTORE_FORMAT = 1

_FILE_BYTES_MAX = 16 * KIB  # a keystore has about 500
_SALT_BYTES = 32
_SEALED_BYTES = SECRET_BYTES + SEAL_OVERHEAD_BYTES

# Twice the memory and eight times the time of the default: room to raise it, and the most that a
# hostile file can cost us.
_SCRYPT_MEMORY_BYTES_MAX = 256 * MIB
_SCRYPT_P_MAX = 4


class ScryptCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The work of one guess at the passphrase: 128 * n * r bytes of memory, p times over."""

    n: int
    r: int
    p: int

    def __post_init__(self) -> None:
        """UsageError if scrypt is not defined for these, or they cost more than the bound."""
        if self.n < 2 or self.n & (self.n - 1) or self.r < 1:
            raise UsageError(
                f"scrypt takes a power of two above 1 as n and a positive r,"
                f" not n={self.n}, r={self.r}"
            )
        if self.r < 4 and self.n >= 2 ** (16 * self.r):  # RFC 7914, section 2
            raise UsageError(f"scrypt with r={self.r} takes n below 2^{16 * self.r}: raise r")
        if 128 * self.n * self.r > _SCRYPT_MEMORY_BYTES_MAX:
            raise UsageError(
                f"scrypt with n={self.n}, r={self.r} takes {128 * self.n * self.r // MIB} MiB,"
                f" at most {_SCRYPT_MEMORY_BYTES_MAX // MIB} are allowed: lower n or r"
            )
        if not 1 <= self.p <= _SCRYPT_P_MAX:
            raise UsageError(f"scrypt's p is 1 to {_SCRYPT_P_MAX} here, not {self.p}")


# 128 MiB and about 0.35 s for each guess.
SCRYPT_COST_DEFAULT = ScryptCost(n=2**17, r=8, p=1)


class _Format(msgspec.Struct, frozen=True):
    format: int


class _Keystore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    address: str
    kdf: Literal["scrypt"]
    cost: ScryptCost
    salt: Annotated[bytes, msgspec.Meta(min_length=_SALT_BYTES, max_length=_SALT_BYTES)]
    cipher: Literal["aes-256-gcm"]
    sealed: Annotated[bytes, msgspec.Meta(min_length=_SEALED_BYTES, max_length=_SEALED_BYTES)]
    checksum: str

    def node_id(self) -> NodeId:
        """The address in binary; UsageError if it is none."""
        return parse_node_id(self.address)


def create_keystore(
    path: Path,
    key: PrivateKey,
    passphrase: str,
    entropy: Entropy,
    *,
    cost: ScryptCost = SCRYPT_COST_DEFAULT,
    allow_empty_passphrase: bool = False,
) -> None:
    """Write key to a new file, durably; KeystoreError if the file exists. Blocks for the cost."""
    if not passphrase and not allow_empty_passphrase:
        raise UsageError(
            f"keystore {path} needs a passphrase:"
            " give one, or allow an empty one (allow_empty_passphrase=True)"
        )
    refuse_existing(path)  # before the costly part; create_private settles it
    salt = entropy.token(_SALT_BYTES)
    associated = _associated(KEYSTORE_FORMAT, key.address, cost, salt)
    sealed = _cipher(passphrase, cost, salt).seal(key.secret_bytes(), associated, entropy)
    keystore = _Keystore(
        format=KEYSTORE_FORMAT,
        address=show_node_id(key.address),
        kdf="scrypt",
        cost=cost,
        salt=salt,
        cipher="aes-256-gcm",
        sealed=sealed,
        checksum=_checksum(associated, sealed),
    )
    text = msgspec.json.format(msgspec.json.encode(keystore), indent=2) + b"\n"
    create_private(path, text, unique=entropy.token(8).hex())


def open_keystore(path: Path, passphrase: str) -> PrivateKey:
    """The key in the file; WrongPassphrase, or KeystoreError if the file is unusable. Blocks."""
    keystore = _parse(path, read_private(path, _FILE_BYTES_MAX))
    cost, salt, node = keystore.cost, keystore.salt, keystore.node_id()
    associated = _associated(keystore.format, node, cost, salt)
    if keystore.checksum != _checksum(associated, keystore.sealed):
        raise KeystoreError(f"keystore {path} is damaged (its checksum fails): restore a backup")
    try:
        secret = _cipher(passphrase, cost, salt).open(keystore.sealed, associated)
    except DecryptionFailed:
        raise WrongPassphrase(
            f"the passphrase does not open keystore {path} of {show_node_id(node)}"
        ) from None
    return _key_of(path, secret, node)


def _key_of(path: Path, secret: bytes, node: NodeId) -> PrivateKey:
    # Only whoever knew the passphrase can have sealed a key under another key's address.
    try:
        key = PrivateKey.from_bytes(secret)
    except IdentityError as error:
        raise KeystoreError(f"keystore {path} holds no key: {error}") from None
    if key.address != node:
        raise KeystoreError(
            f"keystore {path} names {show_node_id(node)},"
            f" but holds the key of {show_node_id(key.address)}: it was not written by Shoal"
        )
    return key


def _parse(path: Path, text: bytes) -> _Keystore:
    try:
        # The format first: a newer file may differ in everything else.
        found = msgspec.json.decode(text, type=_Format).format
        if found > KEYSTORE_FORMAT:
            raise KeystoreError(
                f"keystore {path} has format {found}, this Shoal reads up to {KEYSTORE_FORMAT}:"
                " upgrade Shoal"
            )
        keystore = msgspec.json.decode(text, type=_Keystore)
        keystore.node_id()
    except (ValueError, RecursionError) as error:  # nesting as deep as the file is long
        raise KeystoreError(f"{path} is no keystore, or damaged: {error}") from error
    return keystore


def _cipher(passphrase: str, cost: ScryptCost, salt: bytes) -> Cipher:
    # NFKC, since keyboards and systems spell one accented letter in several ways.
    typed = unicodedata.normalize("NFKC", passphrase).encode("utf-8", "surrogatepass")
    scrypt = Scrypt(salt=salt, length=CIPHER_KEY_BYTES, n=cost.n, r=cost.r, p=cost.p)
    return Cipher(scrypt.derive(typed))


def _associated(number: int, node: NodeId, cost: ScryptCost, salt: bytes) -> bytes:
    # Spelled out instead of re-encoding the JSON: no library's spacing may lock a user out.
    return (
        f"shoal keystore format={number} address={show_node_id(node)}"
        f" kdf=scrypt n={cost.n} r={cost.r} p={cost.p} salt={salt.hex()} cipher=aes-256-gcm"
    ).encode()


def _checksum(associated: bytes, sealed: bytes) -> str:
    return hashlib.sha256(associated + sealed).hexdigest()
