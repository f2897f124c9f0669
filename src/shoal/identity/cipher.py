"""AES-256-GCM with a random nonce in front: nonce (12) || ciphertext || tag (16)."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from shoal.base.errors import DecryptionFailed, IdentityError
from shoal.identity.entropy import Entropy

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
