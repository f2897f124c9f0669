"""The keystore: opens with its passphrase, and with nothing that was altered."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.base.errors import KeystoreError, NotFound, UsageError, WrongPassphrase
from shoal.base.ids import NodeId, show_node_id
from shoal.identity import (
    Cipher,
    PrivateKey,
    ScryptCost,
    SeededEntropy,
    SystemEntropy,
    create_keystore,
    keystore,
    open_keystore,
)

from .strategies import private_key, private_keys

GOLDEN = Path(__file__).parent.parent / "golden" / "keystore-v1.json"
GOLDEN_PASSPHRASE = "correct horse battery staple"  # of a key that holds nothing
GOLDEN_ADDRESS = "0x9d8a62f656a8d1615c1294fd71e9cfb3e4855a4f"  # EIP-155's example key

CHEAP = ScryptCost(n=2, r=1, p=1)
KEY = private_key(0xC0FFEE)
Document = dict[str, Any]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "key.json"


@pytest.fixture
def stored(path: Path) -> Path:
    create_keystore(path, KEY, "sesame", SystemEntropy(), cost=CHEAP)
    return path


def edit(path: Path, change: Callable[[Document], None], *, forge_checksum: bool = False) -> None:
    """Alter a keystore as an attacker would; forging the checksum takes no secret."""
    document: Document = json.loads(path.read_text())
    change(document)
    if forge_checksum:
        cost = document["cost"]
        salt, sealed = (base64.b64decode(document[name]) for name in ("salt", "sealed"))
        associated = keystore._associated(
            document["format"],
            NodeId(bytes.fromhex(document["address"][2:])),
            ScryptCost(**cost),
            salt,
        )
        document["checksum"] = hashlib.sha256(associated + sealed).hexdigest()
    path.write_text(json.dumps(document))


def test_the_golden_keystore_opens(path: Path) -> None:
    shutil.copy(GOLDEN, path)
    path.chmod(0o600)  # version control keeps no such mode
    assert show_node_id(open_keystore(path, GOLDEN_PASSPHRASE).address) == GOLDEN_ADDRESS
    with pytest.raises(WrongPassphrase):
        open_keystore(path, GOLDEN_PASSPHRASE + " ")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(private_keys, st.text(min_size=1), st.integers())
def test_a_stored_key_comes_back(
    tmp_path: Path, key: PrivateKey, passphrase: str, seed: int
) -> None:
    path = tmp_path / "key.json"
    path.unlink(missing_ok=True)
    create_keystore(path, key, passphrase, SeededEntropy(seed), cost=CHEAP)
    assert open_keystore(path, passphrase).public == key.public
    assert key.secret_bytes().hex() not in path.read_text()


def test_the_default_cost_is_in_the_file_and_slows_a_guess_down(path: Path) -> None:
    create_keystore(path, KEY, "sesame", SystemEntropy())
    assert json.loads(path.read_text())["cost"] == {"n": 131072, "r": 8, "p": 1}
    start = time.process_time()
    assert open_keystore(path, "sesame").public == KEY.public
    assert time.process_time() - start > 0.02


def test_two_keystores_of_one_key_share_neither_salt_nor_nonce(tmp_path: Path) -> None:
    entropy = SeededEntropy(1)
    texts = []
    for name in ("a", "b"):
        create_keystore(tmp_path / name, KEY, "sesame", entropy, cost=CHEAP)
        texts.append(json.loads((tmp_path / name).read_text()))
    assert texts[0]["salt"] != texts[1]["salt"]
    assert texts[0]["sealed"][:16] != texts[1]["sealed"][:16]


@pytest.mark.parametrize("passphrase", ["", "Sesame", "sesame ", "sesam", "sésame"])
def test_another_passphrase_is_wrong(stored: Path, passphrase: str) -> None:
    with pytest.raises(WrongPassphrase) as caught:
        open_keystore(stored, passphrase)
    message = str(caught.value)
    assert str(stored) in message
    assert show_node_id(KEY.address) in message
    assert "sesame" not in message.replace(str(stored), "").lower()


def test_one_passphrase_may_be_typed_in_several_ways(path: Path) -> None:
    create_keystore(path, KEY, "caf\u00e9", SystemEntropy(), cost=CHEAP)
    assert open_keystore(path, "cafe\u0301").public == KEY.public


def test_an_undecodable_passphrase_is_as_good_as_any(path: Path) -> None:
    create_keystore(path, KEY, "\udcff", SystemEntropy(), cost=CHEAP)
    assert open_keystore(path, "\udcff").public == KEY.public


def test_an_empty_passphrase_has_to_be_allowed(path: Path) -> None:
    with pytest.raises(UsageError, match="allow_empty_passphrase"):
        create_keystore(path, KEY, "", SystemEntropy(), cost=CHEAP)
    assert not path.exists()
    create_keystore(path, KEY, "", SystemEntropy(), cost=CHEAP, allow_empty_passphrase=True)
    assert open_keystore(path, "").public == KEY.public
    with pytest.raises(WrongPassphrase):
        open_keystore(path, "sesame")


def test_a_missing_keystore_is_not_found(path: Path) -> None:
    with pytest.raises(NotFound, match=r"there is no keystore at .*key\.json"):
        open_keystore(path, "sesame")


OTHER_SALT = base64.b64encode(bytes(32)).decode()
OTHER_SEALED = base64.b64encode(bytes(60)).decode()
ALTERATIONS: list[tuple[str, Callable[[Document], None]]] = [
    ("address", lambda d: d.update(address=show_node_id(private_key(2).address))),
    ("n", lambda d: d["cost"].update(n=4)),
    ("r", lambda d: d["cost"].update(r=2)),
    ("p", lambda d: d["cost"].update(p=2)),
    ("salt", lambda d: d.update(salt=OTHER_SALT)),
    ("sealed", lambda d: d.update(sealed=OTHER_SEALED)),
]
NAMES, CHANGES = zip(*ALTERATIONS, strict=True)


@pytest.mark.parametrize("change", CHANGES, ids=NAMES)
def test_an_altered_field_is_damage(stored: Path, change: Callable[[Document], None]) -> None:
    edit(stored, change)
    with pytest.raises(KeystoreError, match="checksum"):
        open_keystore(stored, "sesame")


@pytest.mark.parametrize("change", CHANGES, ids=NAMES)
def test_forging_the_checksum_as_well_does_not_help(
    stored: Path, change: Callable[[Document], None]
) -> None:
    edit(stored, change, forge_checksum=True)
    with pytest.raises(WrongPassphrase):
        open_keystore(stored, "sesame")


def test_the_format_is_sealed_too(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keystore, "KEYSTORE_FORMAT", 2)
    edit(stored, lambda d: d.update(format=2), forge_checksum=True)
    with pytest.raises(WrongPassphrase):
        open_keystore(stored, "sesame")


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(format=0),
        lambda d: d.update(format="1"),
        lambda d: d.update(kdf="md5"),
        lambda d: d.update(cipher="rot13"),
        lambda d: d.update(checksum="0" * 64),
        lambda d: d.update(checksum=None),
        lambda d: d.update(address="0x12"),
        lambda d: d.update(address="nobody"),
        lambda d: d.update(salt=""),
        lambda d: d.update(salt="?"),
        lambda d: d.update(sealed=d["sealed"][:-4]),
        lambda d: d.update(note="an unknown field"),
        lambda d: d["cost"].update(q=1),
        lambda d: d["cost"].pop("p"),
        *(lambda d, name=name: d.pop(name) for name in ("format", "cost", "salt", "checksum")),
    ],
)
def test_a_field_that_cannot_be_is_damage(stored: Path, change: Callable[[Document], None]) -> None:
    edit(stored, change)
    with pytest.raises(KeystoreError, match=str(stored)):
        open_keystore(stored, "sesame")


def test_a_newer_format_asks_for_an_upgrade(stored: Path) -> None:
    stored.write_text('{"format": 2, "everything": "else differs"}')
    with pytest.raises(KeystoreError, match=r"has format 2, .* reads up to 1: upgrade Shoal"):
        open_keystore(stored, "sesame")


def test_a_truncated_file_is_damage_wherever_it_ends(stored: Path) -> None:
    whole = stored.read_bytes().rstrip()
    for size in range(len(whole)):
        stored.write_bytes(whole[:size])
        with pytest.raises(KeystoreError, match="is no keystore, or damaged"):
            open_keystore(stored, "sesame")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=100),
        st.recursive(
            st.one_of(st.none(), st.integers(), st.text(), st.just(2**70)),
            lambda inner: st.dictionaries(
                st.sampled_from(["format", "cost", "n", "r", "p", "salt", "address"]), inner
            ),
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_any_file_content_is_a_keystore_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key.json"
    path.touch(0o600)
    path.write_bytes(content)
    with pytest.raises(KeystoreError):
        open_keystore(path, "sesame")


@pytest.mark.parametrize(
    "content",
    [
        b'{"format":1,"x":' + b"[" * 16_000,
        b'{"format":' + b"9" * 16_000 + b"}",
        b'{"format":1,"address":"\xff"}',
        b" " * 20_000,
    ],
)
def test_hostile_files_are_refused(stored: Path, content: bytes) -> None:
    stored.write_bytes(content)
    with pytest.raises(KeystoreError, match="is no keystore"):
        open_keystore(stored, "sesame")


@pytest.mark.parametrize(
    ("n", "r", "p"),
    [
        (2**40, 8, 1),
        (2**19, 8, 1),
        (2, 2**40, 1),
        (2**17, 8, 5),
        (2**17, 8, 2**30),
        (2**16, 1, 1),
        (3, 8, 1),
        (1, 8, 1),
        (0, 8, 1),
        (-2, 8, 1),
        (2, 0, 1),
        (2, -1, 1),
        (2, 8, 0),
    ],
)
def test_a_hostile_file_cannot_ask_for_more_work(stored: Path, n: int, r: int, p: int) -> None:
    with pytest.raises(UsageError, match="scrypt"):
        ScryptCost(n=n, r=r, p=p)
    edit(stored, lambda d: d["cost"].update(n=n, r=r, p=p))
    with pytest.raises(KeystoreError, match="scrypt"):
        open_keystore(stored, "sesame")


@pytest.mark.parametrize(("n", "r", "p"), [(2, 1, 1), (2**15, 1, 1), (2**16, 2, 1), (2, 1024, 4)])
def test_every_cost_that_can_be_built_works(path: Path, n: int, r: int, p: int) -> None:
    create_keystore(path, KEY, "sesame", SystemEntropy(), cost=ScryptCost(n=n, r=r, p=p))
    assert open_keystore(path, "sesame").public == KEY.public


def resealed(path: Path, secret: bytes, address: NodeId) -> None:
    """A file made by someone who knows the passphrase, but not by Shoal."""
    salt = bytes(32)
    associated = keystore._associated(1, address, CHEAP, salt)
    cipher: Cipher = keystore._cipher("sesame", CHEAP, salt)
    sealed = cipher.seal(secret, associated, SystemEntropy())
    document: Document = json.loads(path.read_text())
    document.update(
        address=show_node_id(address),
        salt=base64.b64encode(salt).decode(),
        sealed=base64.b64encode(sealed).decode(),
        checksum=hashlib.sha256(associated + sealed).hexdigest(),
    )
    path.write_text(json.dumps(document))


def test_a_key_under_another_keys_address_is_refused(stored: Path) -> None:
    resealed(stored, KEY.secret_bytes(), private_key(2).address)
    with pytest.raises(KeystoreError, match="holds the key of " + show_node_id(KEY.address)):
        open_keystore(stored, "sesame")


def test_a_sealed_secret_that_is_no_key_is_refused(stored: Path) -> None:
    resealed(stored, bytes(32), KEY.address)
    with pytest.raises(KeystoreError, match="holds no key"):
        open_keystore(stored, "sesame")
