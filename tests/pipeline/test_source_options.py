"""What the options of the source may say, and the offsets that Spark keeps."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from uuid import UUID

import pytest
from pyspark.sql.types import StructType

from shoal.base.errors import UsageError
from shoal.base.ids import StreamId
from shoal.base.offsets import Offset, PartitionOffset
from shoal_spark.format import DefaultSource
from shoal_spark.source.offsets import Checkpoint, from_spark, to_spark
from shoal_spark.source.options import KNOWN, parse_options

OWNER = "0x" + "ab" * 20
STREAM = StreamId(f"{OWNER}/city")
A, B = UUID(int=10), UUID(int=11)
NEEDED = {"servers": "http://127.0.0.1:7780", "stream": STREAM}


def test_what_is_not_said_has_its_default() -> None:
    options = parse_options(NEEDED, streaming=True)
    assert (options.servers, options.stream) == (("http://127.0.0.1:7780",), STREAM)
    assert (options.starting, options.ending) == ("latest", "latest")
    assert parse_options(NEEDED, streaming=False).starting == "earliest"
    assert (options.rows_per_trigger, options.min_replicas) == (None, 1)
    assert (options.fail_on_data_loss, options.fail_fast) == (True, False)


def test_names_are_read_in_any_case_as_spark_gives_them() -> None:
    given = {
        "SERVERS": "http://a:1/, https://b:2,http://a:1",
        "stream": STREAM.replace("ab", "AB"),
        "startingoffsets": "2026-01-31T12:00:00Z",
        "MAXROWSPERTRIGGER": "500",
        "failondataloss": "False",
        "Mode": "failfast",
        "minreplicas": "2",
    }
    options = parse_options(given, streaming=True)
    assert options.servers == ("http://a:1", "https://b:2")
    assert options.stream == STREAM
    assert options.starting == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert (options.rows_per_trigger, options.min_replicas) == (500, 2)
    assert (options.fail_on_data_loss, options.fail_fast) == (False, True)


def test_an_offset_may_be_as_shoal_or_as_a_checkpoint_writes_it() -> None:
    offset = Offset({0: PartitionOffset(A, 7, {B: 3})})
    kept = to_spark(STREAM, Checkpoint(offset))
    plain = {name: value for name, value in kept.items() if name != "stream"}
    for text in (json.dumps(kept), json.dumps(plain)):
        given = {**NEEDED, "startingOffsets": text}
        assert parse_options(given, streaming=True).starting == offset


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"path": "x"}, "option 'path': there is none; known are " + ", ".join(KNOWN)),
        ({"stream": ""}, "option 'stream' is missing: give the id of a stream"),
        ({"stream": "city"}, "write the owner's address, a slash and a path"),
        ({"stream": f"{STREAM},{STREAM}"}, "give the id of one stream, without , and"),
        ({"stream": f"{OWNER}/*"}, "give the id of one stream, without , and"),
        ({"allowMissing": "perhaps"}, "allowMissing = 'perhaps': give true or false"),
        ({"servers": "127.0.0.1:7780"}, "write http://host:port"),
        ({"servers": "http://a:1,ftp://b"}, "'ftp://b' is no address of a gateway"),
        ({"servers": "http://a:1/x"}, "is no address of a gateway"),
        ({"servers": "http://a:99999"}, "is no address of a gateway"),
        ({"startingOffsets": "yesterday"}, "or earliest, latest, or an offset as JSON"),
        ({"startingOffsets": '{"v":1}'}, "startingOffsets: '{\"v\":1}' is no offset"),
        ({"startingOffsets": '{"v":1,"stream":"0x/x","p":{}}'}, "checkpointLocation of its own"),
        ({"startingOffsets": '{"v":9,"p":{}}'}, "version 9.*upgrade Shoal"),
        ({"endingOffsets": "latest"}, "endingOffsets is for batch reads"),
        ({"maxRowsPerTrigger": "0"}, "maxRowsPerTrigger = '0': give a whole number, 1 or more"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss = 'no': give true or false"),
        ({"mode": "DROP"}, "mode = 'DROP': give PERMISSIVE or FAILFAST"),
        ({"minReplicas": "2"}, "minReplicas = 2, but 1 servers are named"),
        ({"patienceSeconds": "long"}, "patienceSeconds = 'long': give seconds"),
    ],
)
def test_what_cannot_be_is_named_with_a_remedy(more: dict[str, str], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse_options({**NEEDED, **more}, streaming=True)


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"maxRowsPerTrigger": "5"}, "maxRowsPerTrigger is for streams"),
        ({"startingOffsets": "latest"}, "begin earlier"),
        ({"endingOffsets": "earliest"}, "end later"),
    ],
)
def test_a_batch_needs_a_beginning_and_an_end(more: dict[str, str], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse_options({**NEEDED, **more}, streaming=False)


# Checkpoints


def test_an_offset_is_written_in_one_way_only() -> None:
    """Spark compares texts: another order of keys would be new data, for ever."""
    here, there = PartitionOffset(A, 7, {B: 3}), PartitionOffset(B, 9)
    text = json.dumps(to_spark(STREAM, Checkpoint(Offset({2: here, 10: there}))))
    assert text == json.dumps(to_spark(STREAM, Checkpoint(Offset({10: there, 2: here}))))
    assert text == (
        f'{{"v": 1, "stream": "{STREAM}", "p": {{"2": {{"log": "{A}", "seq": 7, "minus":'
        f' {{"{B}": 3}}}}, "10": {{"log": "{B}", "seq": 9}}}}}}'
    )


def test_the_first_batch_says_where_it_began() -> None:
    checkpoint = Checkpoint(Offset({0: PartitionOffset(A, 9)}), Offset({0: PartitionOffset(A, 4)}))
    assert from_spark(STREAM, to_spark(STREAM, checkpoint)) == checkpoint


def test_a_checkpoint_of_another_stream_is_refused() -> None:
    kept = to_spark(STREAM, Checkpoint(Offset()))
    with pytest.raises(UsageError, match=r"of stream '0x.*/city', and the query reads '0x.*/tram'"):
        from_spark(StreamId(f"{OWNER}/tram"), kept)
    with pytest.raises(UsageError, match="of stream None"):
        from_spark(STREAM, {"offset": 5})


def test_a_schema_that_does_not_fit_names_the_columns() -> None:
    source = DefaultSource({"servers": "http://127.0.0.1:1", "stream": STREAM})
    assert source.reader(source.schema()) is not None
    for make in (source.reader, source.streamReader):
        with pytest.raises(UsageError, match=r"always stream, partition, log.*leave `schema` out"):
            make(StructType().add("value", "string"))
