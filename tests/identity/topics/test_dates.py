"""Moments: one text for each millisecond, and no other."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import UsageError
from shoal.identity.topics.descriptors import (
    CREATED_MS_MAX,
    CREATED_MS_MIN,
    parse_moment,
    show_moment,
)
from tests.support.topics import moments_ms


@pytest.mark.parametrize(
    ("created_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (1_577_934_245_678, "2020-01-02T03:04:05.678Z"),
        (1_577_934_245_001, "2020-01-02T03:04:05.001Z"),
        (1_582_934_400_000, "2020-02-29T00:00:00.000Z"),
        (CREATED_MS_MIN, "0001-01-01T00:00:00.000Z"),
        (CREATED_MS_MAX, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_known_moments(created_ms: int, text: str) -> None:
    assert show_moment(created_ms) == text
    assert parse_moment(text) == created_ms


@given(moments_ms)
def test_a_moment_survives_its_text(created_ms: int) -> None:
    assert parse_moment(show_moment(created_ms)) == created_ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2020-01-02T03:04:05Z",
        "2020-01-02T03:04:05.67Z",
        "2020-01-02T03:04:05.6789Z",
        "2020-01-02T03:04:05,678Z",
        "2020-01-02 03:04:05.678Z",
        "2020-01-02T03:04:05.678z",
        "2020-01-02T03:04:05.678+",
        "2020-01-02T03:04:05.678",
        "2020-13-02T03:04:05.678Z",
        "2021-02-29T03:04:05.678Z",
        "2020-01-02T24:00:00.000Z",
        "2020-01-02T03:04:60.000Z",
        "20200102T030405.67800000",
        "2020-01-02T03:04+01:00Z!",
        "٢٠٢٠-01-02T03:04:05.678Z",
        "+02020-01-02T03:04:05.678Z",
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is no moment: write 2020-01-02T03:04:05\.678Z"):
        parse_moment(text)


@given(st.text("0123456789-:.TZ+ ", min_size=22, max_size=26))
def test_what_is_read_is_what_would_be_written(text: str) -> None:
    with suppress(UsageError):
        assert show_moment(parse_moment(text)) == text
