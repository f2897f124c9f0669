"""Rows of a log as rows of a DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from shoal.base.errors import MalformedMessage
from shoal.base.gateway_messages import LogRow, LogRows, decode_heads, decode_rows, encode_rows
from shoal.base.ids import StreamId
from shoal.identity.message_body import BINARY, TEXT
from shoal_spark.source.log_client import check_page
from shoal_spark.source.offsets import LogRange
from shoal_spark.source.rows import ARROW_SCHEMA, BadRecord, arrow_batch, message_fields
from shoal_spark.source.stream_keys import Opener, StreamKey
from tests.support.log_server import ALICE, START_MS, STREAM, signed

LOG, OTHER = UUID(int=1), UUID(int=2)
PART = LogRange(partition=0, log=LOG, after=0, upto=10)


def table(
    *signed_bytes: bytes, fail_fast: bool = False, keys: Sequence[StreamKey] = ()
) -> list[dict[str, Any]]:
    fields_of = partial(message_fields, opener=Opener(STREAM, keys))
    rows = [LogRow(n, START_MS * 1_000_000 + n, raw) for n, raw in enumerate(signed_bytes, 1)]
    batch = arrow_batch(STREAM, PART, rows, fail_fast=fail_fast, fields_of=fields_of)
    assert batch.schema == ARROW_SCHEMA
    return list(batch.to_pylist())


def test_a_row_has_all_that_its_publisher_said() -> None:
    (row,) = table(signed(7).signed, fail_fast=True)
    when = row.pop("timestamp"), row.pop("ingest_timestamp")
    assert [round(time.timestamp() * 1000) for time in when] == [START_MS + 7, START_MS]
    assert row == {
        "stream": STREAM,
        "partition": 0,
        "log": str(LOG),
        "seq": 1,
        "sequence": 0,
        "publisher": f"0x{ALICE.address.hex()}",
        "chain": "c1",
        "key": None,
        "content": b'{"number":7}',
        "value": '{"number":7}',
        "error": None,
    }


def test_content_that_is_no_text_has_no_value() -> None:
    text, binary, broken = table(
        signed(1, content="é".encode(), content_type=TEXT).signed,
        signed(2, content=b"\xff", content_type=BINARY).signed,
        signed(3, content=b"\xff", content_type=TEXT).signed,
    )
    assert (text["value"], text["error"]) == ("é", None)
    assert (binary["content"], binary["value"], binary["error"]) == (b"\xff", None, None)
    assert (broken["content"], broken["value"]) == (b"\xff", None)
    assert "should be text" in broken["error"]
    assert broken["publisher"] is not None, "who says so is known"


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"", "no message"),
        (b"x" * 65, "no message"),
        (signed(1).signed[:-1] + b"!", "did not sign it"),
        (signed(1, forged=True).signed, "did not sign it"),
        (signed(1, partition=1).signed, "another place: .*, partition 1"),
        (signed(1, stream=StreamId(STREAM + "2")).signed, "another place: .*vehicles2"),
        (signed(300_000_000_000_000).signed, "after the year 9999"),
    ],
)
def test_a_bad_record_tells_nothing_but_its_place(raw: bytes, complaint: str) -> None:
    good, bad = table(signed(0).signed, raw)
    assert good["error"] is None
    assert (bad["seq"], bad["log"], bad["content"]) == (2, str(LOG), raw)
    told = ("timestamp", "sequence", "publisher", "chain", "key", "value")
    assert [bad[column] for column in told] == [None] * 6
    with pytest.raises(BadRecord, match=f"row 2 of log {LOG}.*{complaint}"):
        table(signed(0).signed, raw, fail_fast=True)


# What servers may say


def page(*seqs: int, through: int, log: UUID = LOG) -> LogRows:
    return LogRows(log, 1, 10, through, [LogRow(seq, 0, b"") for seq in seqs])


def test_a_page_comes_as_it_was_sent() -> None:
    sent = page(1, 2, through=2)
    assert decode_rows(encode_rows(sent)) == sent


@pytest.mark.parametrize("raw", [b"", b"\x90", b"\xff", b"{}"])
def test_bytes_that_are_no_answer_are_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_rows(raw)
    with pytest.raises(MalformedMessage):
        decode_heads(raw)


@pytest.mark.parametrize(
    ("answer", "everything"),
    [
        (page(4, 5, through=5), True),
        (page(4, 6, through=7), False),
        (page(through=10), False),
    ],
)
def test_a_page_that_leads_on_is_taken(answer: LogRows, everything: bool) -> None:
    check_page(PART, 3, answer, everything=everything)


@pytest.mark.parametrize(
    ("answer", "everything", "complaint"),
    [
        (page(4, through=4, log=OTHER), True, "rows of log"),
        (page(through=3), True, "up to 10 only"),
        (page(4, through=11), True, "up to 10 only"),
        (page(4, 6, through=6), True, "rows 4 to 6 .* are not all there"),
        (page(4, 5, through=6), True, "rows 4 to 6 .* are not all there"),
        (page(through=6), True, "are not all there"),
        (page(5, 4, through=6), False, "row 4 after row 5"),
        (page(3, through=6), False, "row 3 after row 3"),
        (page(7, through=6), False, "row 7 after row 3"),
    ],
)
def test_a_page_that_cannot_be_is_not(answer: LogRows, everything: bool, complaint: str) -> None:
    with pytest.raises(MalformedMessage, match=complaint):
        check_page(PART, 3, answer, everything=everything)
