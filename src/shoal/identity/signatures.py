"""Recoverable secp256k1 signatures: r || s || v, 65 bytes, over keccak256 of the signed body.

A signature names its signer, so messages carry no key: recover the key, hash it, compare. s is in
the lower half of the group order: otherwise anyone could turn a signature into a second one.

A signer's key, once recovered, is remembered: checking against it takes a sixth less time. It
leaves v unchecked, and every hop has to reach the same verdict, whether it knows the key or not.
So v (0 or 1) is a hint for finding the key: who does not know the key tries the other v as well.
Anyone can change v, and the message stays valid; it is the same message, by its id and its body.

This is the floor of a relay's throughput. The calls go to the C library directly: coincurve's
classes around it cost another 5 %, all of it with the GIL held. The C calls release it, the
shared context is only read, and so both functions may run in any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from coincurve._libsecp256k1 import ffi, lib  # type: ignore[import-not-found]
from coincurve.context import GLOBAL_CONTEXT
from coincurve.flags import EC_UNCOMPRESSED

from shoal.base.errors import BadSignature
from shoal.base.ids import NodeId

SIGNATURE_BYTES = 65

# Half the group order, as bytes: big-endian bytes of one length compare like the numbers.
_S_MAX = bytes.fromhex("7fffffffffffffffffffffffffffffff5d576e7357a4501ddfe92f46681b20a0")

_CONTEXT = GLOBAL_CONTEXT.ctx
_SIGNATURE = ffi.typeof("secp256k1_ecdsa_recoverable_signature *")
_POINT = ffi.typeof("secp256k1_pubkey *")
_POINT_TEXT = ffi.typeof("unsigned char[65]")
_SIZE = ffi.typeof("size_t *")
_PLAIN_SIGNATURE = ffi.typeof("secp256k1_ecdsa_signature *")
_new, _buffer = ffi.new, ffi.buffer
_parse_plain = lib.secp256k1_ecdsa_signature_parse_compact
_verify = lib.secp256k1_ecdsa_verify
_parse = lib.secp256k1_ecdsa_recoverable_signature_parse_compact
_recover = lib.secp256k1_ecdsa_recover
_serialize = lib.secp256k1_ec_pubkey_serialize

# The keys of signers seen lately, as the C library holds them. It only reads them.
_keys: dict[NodeId, Any] = {}
_KEYS_MAX = 4096


def recover(body: bytes, signature: bytes) -> NodeId:
    """The id of the key that signed body; BadSignature for anything that is no signature."""
    return _id_of(_recover_point(body, signature))


def verify_signed(signer: NodeId, signed: bytes) -> bool:
    """Whether signer signed what lies behind the signature that the bytes begin with."""
    return verify(signer, signed[SIGNATURE_BYTES:], signed[:SIGNATURE_BYTES])


def verify(signer: NodeId, body: bytes, signature: bytes) -> bool:
    """Whether signer signed body; False, never an exception, for any bytes from a peer."""
    if len(signature) != SIGNATURE_BYTES or signature[64] > 1:
        return False
    key = _keys.get(signer)
    if key is not None:
        parsed = _new(_PLAIN_SIGNATURE)
        # A high s is refused here as well: by the library itself.
        return bool(
            _parse_plain(_CONTEXT, parsed, signature)
            and _verify(_CONTEXT, parsed, keccak256(body), key)
        )
    for v in (signature[64], 1 - signature[64]):
        try:
            key = _recover_point(body, signature[:64] + bytes([v]))
        except BadSignature:
            continue
        if _id_of(key) == signer:
            if len(_keys) >= _KEYS_MAX:
                _keys.clear()
            _keys[signer] = key
            return True
    return False


def _recover_point(body: bytes, signature: bytes) -> Any:
    # The length goes first: the C library reads 64 bytes, however many there are.
    if len(signature) != SIGNATURE_BYTES:
        raise BadSignature(f"a signature has {SIGNATURE_BYTES} bytes, not {len(signature)}")
    v = signature[64]
    if v > 1:
        raise BadSignature(f"the last byte of a signature is 0 or 1, not {v}")
    if signature[32:64] > _S_MAX:
        raise BadSignature("s is in the upper half: a changed copy of another signature")
    parsed = _new(_SIGNATURE)
    if not _parse(_CONTEXT, parsed, signature, v):
        raise BadSignature("r is beyond the group order")
    point = _new(_POINT)
    if not _recover(_CONTEXT, point, parsed, keccak256(body)):
        raise BadSignature("no key can have made this signature")
    return point


def _id_of(point: Any) -> NodeId:
    text = _new(_POINT_TEXT)
    _serialize(_CONTEXT, text, _new(_SIZE, 65), point, EC_UNCOMPRESSED)
    return NodeId(keccak256(_buffer(text)[1:65])[12:])


# keccak256 as Ethereum uses it: the padding from before SHA-3 became a standard.


Hash = Callable[[bytes], bytes]


def _from_pysha3() -> Hash:
    keccak_256 = import_module("sha3").keccak_256

    def keccak256(data: bytes) -> bytes:
        """The 32-byte keccak256 digest of data."""
        digest: bytes = keccak_256(data).digest()
        return digest

    return keccak256


def _from_pycryptodome() -> Hash:
    new = import_module("Crypto.Hash.keccak").new

    def keccak256(data: bytes) -> bytes:
        """The 32-byte keccak256 digest of data."""
        digest: bytes = new(digest_bits=256, data=data).digest()
        return digest

    return keccak256


def _load() -> Hash:
    # safe-pysha3 is three times as fast, but has no wheels for Windows. Both are found by name
    # at run time because a machine has only one of them.
    for implementation in (_from_pysha3, _from_pycryptodome):
        try:
            return implementation()
        except ImportError:
            continue
    raise ImportError("no keccak256 found: pip install safe-pysha3 (on Windows: pycryptodome)")


keccak256: Hash = _load()
