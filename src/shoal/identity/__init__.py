"""Who a node is: its key, what it signs and seals, how it is named, where its secrets rest.

Begin with `keys.py` and `signatures.py`; then `message_body.py`, what a stream's publisher signs,
and `group_key.py`, what its content is sealed with. `topics/` is the same for topics. Spark's
executors load all of it, so nothing here knows a protocol, a link or a clock. What is signed,
sealed or hashed here stays byte for byte the same.
"""

from shoal.identity.entropy import Entropy, SeededEntropy, SystemEntropy
from shoal.identity.keys import PrivateKey, PublicKey
from shoal.identity.keystore import (
    CIPHER_KEY_BYTES,
    SEAL_OVERHEAD_BYTES,
    SEALS_PER_KEY_MAX,
    Cipher,
    ScryptCost,
    create_keystore,
    open_keystore,
)
from shoal.identity.peer_id import (
    PEER_ID_BYTES,
    PeerId,
    parse_peer_id,
    peer_id_of_bytes,
    show_peer_id,
)
from shoal.identity.secret_sources import read_secret, split_secret_source
from shoal.identity.signatures import SIGNATURE_BYTES, keccak256, recover, verify, verify_signed

__all__ = [
    "CIPHER_KEY_BYTES",
    "PEER_ID_BYTES",
    "SEALS_PER_KEY_MAX",
    "SEAL_OVERHEAD_BYTES",
    "SIGNATURE_BYTES",
    "Cipher",
    "Entropy",
    "PeerId",
    "PrivateKey",
    "PublicKey",
    "ScryptCost",
    "SeededEntropy",
    "SystemEntropy",
    "create_keystore",
    "keccak256",
    "open_keystore",
    "parse_peer_id",
    "peer_id_of_bytes",
    "read_secret",
    "recover",
    "show_peer_id",
    "split_secret_source",
    "verify",
    "verify_signed",
]
