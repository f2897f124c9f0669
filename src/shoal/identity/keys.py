"""A node's key pair on secp256k1. Its Ethereum address is the node's id everywhere in Shoal."""

from __future__ import annotations

from typing import NoReturn, Self, SupportsIndex

import coincurve

from shoal.base.errors import IdentityError, MalformedMessage
from shoal.base.ids import NodeId, show_node_id
from shoal.identity.entropy import Entropy
from shoal.identity.peer_id import PeerId, peer_id_of_point, point_of_peer_id
from shoal.identity.signatures import keccak256

SECRET_BYTES = 32

# A random 32-byte string is no key once in 2^128 draws; twice in a row is a broken source.
_DRAWS_MAX = 2

# Length and first byte of the two encodings taken. The C library also reads a third, "hybrid"
# one: refused, so that a key has as few spellings as possible.
_ENCODINGS = {(33, 2), (33, 3), (65, 4)}


class PublicKey:
    """A point of the curve; immutable, compared by value."""

    __slots__ = ("_address", "_compressed")

    def __init__(self, point: coincurve.PublicKey) -> None:
        """Wrap a point; from_bytes and from_peer_id read one."""
        self._compressed = point.format()
        self._address = NodeId(keccak256(point.format(compressed=False)[1:])[12:])

    @classmethod
    def from_bytes(cls, encoded: bytes) -> Self:
        """Read 33 (compressed) or 65 bytes from a peer; MalformedMessage if they are no key."""
        if not encoded or (len(encoded), encoded[0]) not in _ENCODINGS:
            raise MalformedMessage(
                f"a public key has 33 bytes from 02 or 03 on, or 65 from 04 on,"
                f" this has {len(encoded)} from {encoded[:1].hex() or 'nothing'} on"
            )
        try:
            return cls(coincurve.PublicKey(encoded))
        except ValueError:
            raise MalformedMessage(f"{encoded.hex()} is no point of secp256k1") from None

    @classmethod
    def from_peer_id(cls, peer: PeerId) -> Self:
        """The key inside a peer id; MalformedMessage if it holds none."""
        return cls.from_bytes(point_of_peer_id(peer))

    @property
    def address(self) -> NodeId:
        """The node id of this key: the last 20 bytes of keccak256 over x and y."""
        return self._address

    @property
    def peer_id(self) -> PeerId:
        """The libp2p peer id of this key."""
        return peer_id_of_point(self._compressed)

    def to_bytes(self) -> bytes:
        """The 33-byte compressed encoding."""
        return self._compressed

    def coordinates(self) -> tuple[int, int]:
        """x and y, as contracts have them."""
        return coincurve.PublicKey(self._compressed).point()

    def __eq__(self, other: object) -> bool:
        """Equal if the points are."""
        return isinstance(other, PublicKey) and self._compressed == other._compressed

    def __hash__(self) -> int:
        """Agrees with equality."""
        return hash(self._compressed)

    def __repr__(self) -> str:
        """The key in hex."""
        return f"PublicKey({self._compressed.hex()})"


class PrivateKey:
    """A secret scalar that signs. Shows its address only; leaves the process only on request."""

    __slots__ = ("_key", "_public")

    def __init__(self, key: coincurve.PrivateKey) -> None:
        """Wrap a key; generate makes one, from_bytes reads one."""
        self._key = key
        self._public = PublicKey(key.public_key)

    @classmethod
    def generate(cls, entropy: Entropy) -> Self:
        """A new key from the entropy port."""
        for _ in range(_DRAWS_MAX):
            try:
                return cls.from_bytes(entropy.token(SECRET_BYTES))
            except IdentityError:
                continue
        raise IdentityError(f"{type(entropy).__name__} gives no usable bytes: use SystemEntropy")

    @classmethod
    def from_bytes(cls, secret: bytes) -> Self:
        """Read the 32 bytes of a secret scalar; IdentityError if they cannot be one."""
        if len(secret) != SECRET_BYTES:
            raise IdentityError(f"a private key has {SECRET_BYTES} bytes, this has {len(secret)}")
        try:
            return cls(coincurve.PrivateKey(secret))
        except ValueError:
            raise IdentityError(
                "these 32 bytes are no private key: zero, or beyond the group order"
            ) from None

    @property
    def public(self) -> PublicKey:
        """The public half."""
        return self._public

    @property
    def address(self) -> NodeId:
        """The node id of this key."""
        return self._public.address

    def sign(self, body: bytes) -> bytes:
        """The 65-byte signature over body; the same body gives the same bytes (RFC 6979)."""
        # v above 1 needs an r beyond the group order, which nobody has ever seen (1 in 2^127).
        return self._key.sign_recoverable(keccak256(body), hasher=None)

    def shared_secret(self, other: PublicKey) -> bytes:
        """Diffie-Hellman with another's key: SHA-256 over the common point, 32 bytes."""
        return self._key.ecdh(other.to_bytes())

    def secret_bytes(self) -> bytes:
        """The secret itself, for a keystore: keep it out of logs, messages and errors."""
        return self._key.secret

    def __repr__(self) -> str:
        """The address; never the secret."""
        return f"PrivateKey(address={show_node_id(self.address)})"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse pickle and copy: a secret must not travel inside some other object."""
        raise TypeError("a PrivateKey cannot be pickled or copied: use create_keystore")
