"""CIDs: the original's, there and back, and what is none."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import MalformedMessage, UsageError
from shoal.identity.topics.cid import CID_BYTES, cid_of, cid_of_bytes, parse_cid, show_cid
from tests.support.topics import BLOCKS

TEXT = BLOCKS["topic"]["cid"]
RAW = bytes.fromhex(BLOCKS["topic"]["cidBytes"])


@pytest.mark.parametrize("name", BLOCKS)
def test_the_originals_cids(name: str) -> None:
    vector = BLOCKS[name]
    cid = cid_of(bytes.fromhex(vector["cbor"]))
    assert cid.hex() == vector["cidBytes"]
    assert show_cid(cid) == vector["cid"]
    assert parse_cid(vector["cid"]) == cid


@given(st.binary(max_size=64))
def test_a_cid_survives_text_and_bytes(block: bytes) -> None:
    cid = cid_of(block)
    assert len(cid) == CID_BYTES
    assert show_cid(cid).startswith("zdpu")
    assert parse_cid(show_cid(cid)) == cid == cid_of_bytes(bytes(cid))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        RAW[:-1],
        RAW + b"\0",
        b"\0" + RAW,
        bytes.fromhex("01701220") + RAW[4:],  # dag-pb
        bytes.fromhex("01711320") + RAW[4:],  # sha2-512
        bytes.fromhex("1220") + RAW[4:],  # CIDv0
    ],
)
def test_other_bytes_are_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedMessage, match="36 bytes from 01711220 on"):
        cid_of_bytes(raw)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "z",
        TEXT[1:],
        TEXT[:-1],
        TEXT + "1",
        TEXT.replace("p", "0"),
        "QmNQa1FSTXNHmrjjfgUW3Px3Vkke4oKiFWdigWkYSux2Pi",
        "bafyreigk5ojhs4",
        "z" * 100_000,
    ],
)
def test_other_text_is_named_in_the_error(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not the CID of a topic or event \(zdpu") as caught:
        parse_cid(text)
    assert repr(text[:40])[:-1] in str(caught.value)
    assert len(str(caught.value)) < 500


@given(st.text(max_size=60) | st.text("zdpuA123", max_size=60))
def test_any_text_is_a_cid_or_a_usage_error(text: str) -> None:
    with suppress(UsageError):
        assert show_cid(parse_cid(text)) == text
