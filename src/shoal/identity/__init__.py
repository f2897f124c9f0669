"""Who a node is: its key, what it signs, how it is named, and where the key rests.

keys             PrivateKey and PublicKey on secp256k1; the address is the node id
signatures       recover and verify, the floor of a relay's throughput
stream_message   what a stream's publisher signs
peer_id          the same key as a libp2p peer id
cipher           authenticated encryption under a shared key
group_key        what a publisher seals the messages of a stream with
wrapped_key      a group key on its way to a reader
group_key_file   the group keys that a node holds, on disk
keystore         a private key in a file, sealed with a passphrase
session          one run of a node, signed
secrets          where passphrases and tokens are, and never what they are
entropy          the port all randomness comes through, and its seeded twin
"""

from shoal.identity.cipher import (
    CIPHER_KEY_BYTES,
    SEAL_OVERHEAD_BYTES,
    SEALS_PER_KEY_MAX,
    Cipher,
)
from shoal.identity.entropy import Entropy, SeededEntropy, SystemEntropy
from shoal.identity.keccak import keccak256
from shoal.identity.keys import PrivateKey, PublicKey
from shoal.identity.keystore import ScryptCost, create_keystore, open_keystore
from shoal.identity.peer_id import (
    PEER_ID_BYTES,
    PeerId,
    parse_peer_id,
    peer_id_of_bytes,
    show_peer_id,
)
from shoal.identity.secrets import read_secret, split_secret_source
from shoal.identity.signatures import SIGNATURE_BYTES, recover, verify, verify_signed

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
