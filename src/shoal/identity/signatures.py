"""Recoverable secp256k1 signatures: r || s || v, 65 bytes, over keccak256 of the signed body.

A signature names its signer, so messages carry no key: recover the key, hash it, compare.
Exactly one signature per body and nonce is accepted: v is 0 or 1, and s is in the lower half
(otherwise anyone could turn a valid signature into a second one without the key, and two copies
of one message would look like two).

Checking against a known public key would save a sixth of the time, but leaves v unchecked: the
hop that knows the key would then pass on what the next hop, which does not, drops and penalises.
Every hop has to reach the same verdict, so every hop recovers.

This is the floor of a relay's throughput. The calls go to the C library directly: coincurve's
classes around it cost another 5 %, all of it with the GIL held. The C calls release it, the
shared context is only read, and so both functions may run in any number of threads.
"""

from __future__ import annotations

from coincurve._libsecp256k1 import ffi, lib  # type: ignore[import-not-found]
from coincurve.context import GLOBAL_CONTEXT
from coincurve.flags import EC_UNCOMPRESSED

from shoal.base.errors import BadSignature
from shoal.base.ids import NodeId
from shoal.identity.keccak import keccak256

SIGNATURE_BYTES = 65

# Half the group order, as bytes: big-endian bytes of one length compare like the numbers.
_S_MAX = bytes.fromhex("7fffffffffffffffffffffffffffffff5d576e7357a4501ddfe92f46681b20a0")

_CONTEXT = GLOBAL_CONTEXT.ctx
_SIGNATURE = ffi.typeof("secp256k1_ecdsa_recoverable_signature *")
_POINT = ffi.typeof("secp256k1_pubkey *")
_POINT_TEXT = ffi.typeof("unsigned char[65]")
_SIZE = ffi.typeof("size_t *")
_new, _buffer = ffi.new, ffi.buffer
_parse = lib.secp256k1_ecdsa_recoverable_signature_parse_compact
_recover = lib.secp256k1_ecdsa_recover
_serialize = lib.secp256k1_ec_pubkey_serialize


def recover(body: bytes, signature: bytes) -> NodeId:
    """The id of the key that signed body; BadSignature for anything that is no signature."""
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
    text = _new(_POINT_TEXT)
    _serialize(_CONTEXT, text, _new(_SIZE, 65), point, EC_UNCOMPRESSED)
    return NodeId(keccak256(_buffer(text)[1:65])[12:])


def verify(signer: NodeId, body: bytes, signature: bytes) -> bool:
    """Whether signer signed body; False, never an exception, for any bytes from a peer."""
    try:
        return recover(body, signature) == signer
    except BadSignature:
        return False
