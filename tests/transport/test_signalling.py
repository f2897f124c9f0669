"""Signals on the wire, and session descriptions: pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import MalformedMessage
from shoal.transport.webrtc_signals import (
    CANDIDATES_MAX,
    SIGNAL_BYTES_MAX,
    Answer,
    Candidate,
    Description,
    End,
    More,
    Offer,
    Ring,
    SignalMessage,
    decode_signal,
    encode_signal,
    read_candidate,
    read_description,
    write_candidate,
    write_description,
)

ice_texts = st.text("abcXYZ019+/", min_size=4, max_size=256)
candidates = st.builds(
    Candidate,
    st.text("abc019+/", min_size=1, max_size=32),
    st.integers(1, (1 << 31) - 1),
    st.ip_addresses().map(str),
    st.integers(1, 65535),
    st.sampled_from(["host", "srflx", "prflx", "relay"]),
)
descriptions = st.builds(Description, ice_texts, ice_texts, st.binary(min_size=32, max_size=32))
several = st.lists(candidates, max_size=CANDIDATES_MAX).map(tuple)
calls = st.binary(min_size=8, max_size=8)
signals: st.SearchStrategy[SignalMessage] = st.one_of(
    st.builds(Ring, calls),
    st.builds(Offer, calls, st.booleans(), descriptions, several),
    st.builds(Answer, calls, descriptions, several),
    st.builds(More, calls, several),
    st.builds(End, calls),
)


@given(signals)
def test_a_signal_comes_back_as_it_was(message: SignalMessage) -> None:
    assert decode_signal(encode_signal(message)) == message
    assert len(encode_signal(message)) <= SIGNAL_BYTES_MAX


def test_the_longest_signal_fits() -> None:
    candidate = Candidate("f" * 32, (1 << 31) - 1, "f" * 45, 65535, "srflx")
    description = Description("u" * 256, "p" * 256, bytes(32))
    offer = Offer(bytes(8), True, description, (candidate,) * CANDIDATES_MAX)
    assert decode_signal(encode_signal(offer)) == offer


@given(st.binary(max_size=100))
def test_bytes_that_are_no_signal_are_malformed(data: bytes) -> None:
    try:
        decode_signal(data)
    except MalformedMessage:
        return


@pytest.mark.parametrize(
    "signal",
    [
        encode_signal(Ring(bytes(7))),
        encode_signal(End(bytes(9))),
        encode_signal(More(bytes(8), (Candidate("f", 1, "1.2.3.4", 1, "host"),) * 17)),
        encode_signal(More(bytes(8), (Candidate("f", 1, "1.2.3.4\r\na=evil", 1, "host"),))),
        encode_signal(More(bytes(8), (Candidate("f g", 1, "1.2.3.4", 1, "host"),))),
        encode_signal(More(bytes(8), (Candidate("f", 1, "1.2.3.4", 0, "host"),))),
        encode_signal(More(bytes(8), (Candidate("f", 1, "host.local", 1, "host"),))),
        encode_signal(Answer(bytes(8), Description("user\n", "pass", bytes(32)), ())),
        encode_signal(Answer(bytes(8), Description("user", "pass\r\na=x:y", bytes(32)), ())),
        encode_signal(Answer(bytes(8), Description("user", "pass", bytes(31)), ())),
        b"\x93" + bytes(SIGNAL_BYTES_MAX),
        b"",
    ],
)
def test_what_could_become_another_line_of_a_description_is_malformed(signal: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_signal(signal)


@given(descriptions, st.booleans())
def test_a_description_that_is_written_can_be_read(description: Description, offer: bool) -> None:
    text = write_description(description, offer=offer)
    assert read_description(text) == description
    assert f"a=setup:{'actpass' if offer else 'active'}\r\n" in text
    assert text.count("m=") == 1


@given(candidates)
def test_a_candidate_that_is_written_can_be_read(candidate: Candidate) -> None:
    assert read_candidate(write_candidate(candidate)) == candidate


@pytest.mark.parametrize(
    "text",
    [
        "candidate:1 1 tcp 1518214911 192.0.2.2 9 typ host tcptype active",
        "candidate:1 1 udp 2122194687 4f9b.local 49969 typ host",
        "candidate:1 2 udp 2122194687 192.0.2.2 49969 typ host",
        "",
    ],
    ids=["tcp", "hidden", "rtcp", "empty"],
)
def test_candidates_of_no_use_are_not_told(text: str) -> None:
    assert read_candidate(text) is None


def test_a_text_without_a_fingerprint_describes_nothing() -> None:
    with pytest.raises(ValueError, match="fingerprint"):
        read_description("v=0\r\na=ice-ufrag:user\r\na=ice-pwd:password\r\n")
