"""The sink as far as it needs no JVM: options, columns, chunks, and patience with an outbox."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyspark.sql import types

from shoal.base.errors import ConfigError, UsageError
from shoal.base.gateway_messages import (
    BODY_BYTES_MAX,
    CHUNK_BYTES,
    CHUNK_ROWS_MAX,
    EpochRequest,
    Fingerprint,
    SealRequest,
)
from shoal.identity.message_body import BINARY, CONTENT_BYTES_MAX, TEXT
from shoal_spark.sink import (
    BatchWriter,
    OutboxClient,
    OutboxRefused,
    OutboxUnavailable,
    SinkOptions,
    StagedTask,
    StreamWriter,
    batch_writer,
    check_columns,
    chunks_of,
    parse_options,
    rows_of,
    seal_batch,
    stage_task,
    stream_writer,
)

STREAM = "0x" + "ab" * 20 + "/alerts"
GIVEN = {"outbox": "http://127.0.0.1:7780", "stream": STREAM, "token": "env:SHOAL_TEST_TOKEN"}


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_TEST_TOKEN", "open sesame, please")


def schema_of(**columns: str) -> Any:
    schema = types.StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    return schema


# Options and columns


def test_options_are_read_in_any_case_and_those_of_spark_are_passed_over() -> None:
    given = {**GIVEN, "checkpointLocation": "/x", "PATIENCEseconds": "5"}
    assert parse_options(given) == SinkOptions(GIVEN["outbox"], STREAM, GIVEN["token"], 5.0, "/x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"colour": "red"}, "'colour': there is none; known are outbox, stream, token"),
        ({"outbox": ""}, "'outbox' is missing: give the HTTP address"),
        ({"outbox": "127.0.0.1:7780"}, "write http://host:port"),
        ({"outbox": "http://u:p@host/x"}, "write http://host:port"),
        ({"stream": "alerts"}, "alerts"),
        ({"stream": STREAM + "," + STREAM}, "one stream, without , and"),
        ({"stream": STREAM + "/*"}, "one stream, without , and"),
        ({"patienceSeconds": "soon"}, "give seconds"),
    ],
)
def test_options_that_cannot_work_name_the_remedy(changed: dict[str, str], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse_options({**GIVEN, **changed})


def test_a_raw_token_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="never the token itself") as caught:
        parse_options({**GIVEN, "token": "hunter2"})
    assert "hunter2" not in str(caught.value)
    assert "open sesame" not in repr(parse_options(GIVEN)), "what it is travels with no plan"


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"key": "string"}, "no column 'value'"),
        ({"value": "integer"}, "'value' is int, and has to be a string or binary: cast it"),
        ({"value": "string", "key": "binary"}, "'key' is binary, and has to be a string"),
        ({"value": "string", "partition": "string"}, "has to be an int"),
        ({"value": "string", "speed": "double"}, "'speed': a sink has value, key, partition"),
    ],
)
def test_columns_that_do_not_fit_name_the_remedy(columns: dict[str, str], complaint: str) -> None:
    schema = schema_of(**columns)
    for make in (batch_writer, stream_writer):
        with pytest.raises(UsageError, match=complaint):
            make(GIVEN, schema, False)


def test_columns_that_fit() -> None:
    for kind in ("string", "binary"):
        check_columns(schema_of(value=kind, key="string"))
    for kind in ("short", "integer", "long"):
        check_columns(schema_of(value="string", partition=kind))


def test_a_stream_is_not_overwritten() -> None:
    with pytest.raises(UsageError, match=r"mode\('append'\)"):
        batch_writer(GIVEN, schema_of(value="string"), True)


# Rows


def batch(**columns: list[Any]) -> Any:
    return pa.RecordBatch.from_pydict(columns)


def test_rows_have_what_their_columns_say() -> None:
    text = batch(value=["grüße", "b"], key=["k", None], partition=pa.array([None, 3], pa.int32()))
    assert list(rows_of([text])) == [
        (TEXT, None, "k", "grüße".encode()),
        (TEXT, 3, None, b"b"),
    ]
    assert list(rows_of([batch(value=[b"\0"])])) == [(BINARY, None, None, b"\0")]


@pytest.mark.parametrize(
    ("value", "complaint"), [(None, "no value"), (b"x" * (CONTENT_BYTES_MAX + 1), "split it")]
)
def test_rows_that_cannot_be_published_end_the_task(value: bytes | None, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        list(rows_of([batch(value=pa.array([value], pa.binary()))]))


def test_chunks_are_bounded_in_rows_and_bytes_and_keep_the_order() -> None:
    small = [b"%d" % number for number in range(2 * CHUNK_ROWS_MAX + 1)]
    chunks = list(chunks_of([batch(value=small[:700]), batch(value=small[700:])]))
    assert [len(chunk) for chunk in chunks] == [CHUNK_ROWS_MAX, CHUNK_ROWS_MAX, 1]
    assert [row[3] for chunk in chunks for row in chunk] == small
    large = [b"x" * CONTENT_BYTES_MAX, b"y" * (CHUNK_BYTES - 1), b"z" * CONTENT_BYTES_MAX]
    sizes = [[len(row[3]) for row in chunk] for chunk in chunks_of([batch(value=large)])]
    assert sizes == [[CONTENT_BYTES_MAX], [CHUNK_BYTES - 1, CONTENT_BYTES_MAX]]
    assert max(map(sum, sizes)) < BODY_BYTES_MAX, "and fit a request"


# The outbox, over HTTP


@contextmanager
def answering(
    *answers: tuple[int, Any], bodies: list[bytes] | None = None
) -> Iterator[tuple[SinkOptions, list[tuple[str, str]]]]:
    """A server that gives these answers, the last one for ever; what it was asked."""
    asked: list[tuple[str, str]] = []
    heard = [] if bodies is None else bodies
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # it answers in two writes: the second would wait 40 ms

        def do_POST(self) -> None:
            heard.append(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, self.headers["Authorization"]))
            status, answer = left.pop(0) if len(left) > 1 else left[0]
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        port = server.server_address[1]
        yield parse_options({**GIVEN, "outbox": f"http://127.0.0.1:{port}"}), asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Clock:
    """Time that passes by sleeping only."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def client_of(options: SinkOptions, clock: Clock) -> OutboxClient:
    return OutboxClient(options, clock=clock, sleep=clock.sleep)


EPOCH = EpochRequest("q", "r", STREAM)
BUSY = (429, {"error": "full"})


def test_a_full_outbox_is_waited_for() -> None:
    clock = Clock()
    with answering(BUSY, BUSY, (503, {"error": "disk"}), (200, {"epoch": 3})) as (options, asked):
        client = client_of(options, clock)
        assert client.take_epoch(EPOCH) == 3
        client.close()
    assert clock.now_s == pytest.approx(1.5)
    assert asked == [("/outbox/epoch", "Bearer open sesame, please")] * 4


def test_but_not_for_ever() -> None:
    clock = Clock()
    with answering(BUSY) as (options, _):
        client = client_of(replace(options, patience_s=20.0), clock)
        with pytest.raises(OutboxUnavailable, match="no room for 20 s: full"):
            client.take_epoch(EPOCH)
        client.close()


def test_a_node_that_is_gone_is_waited_for_and_then_told() -> None:
    with answering((200, {})) as (options, _):
        pass
    clock = Clock()
    with pytest.raises(OutboxUnavailable, match=r"is the node running, with \[outbox\]"):
        client_of(options, clock).take_epoch(EPOCH)
    assert 60 <= clock.now_s <= 61


@pytest.mark.parametrize("status", [400, 401, 404, 409, 412, 413])
def test_a_refusal_is_said_at_once(status: int) -> None:
    clock = Clock()
    with answering((status, {"error": "because"})) as (options, asked):
        client = client_of(options, clock)
        with pytest.raises(OutboxRefused, match="because") as caught:
            client.seal(SealRequest("q", 1, 0, [], Fingerprint()))
        client.close()
    assert (caught.value.status, len(asked), clock.now_s) == (status, 1, 0)


def test_a_batch_write_that_failed_gives_back_what_all_its_tasks_staged() -> None:
    """Also of tasks that did not come to their end: no message tells of them."""
    bodies: list[bytes] = []
    with answering((200, {}), bodies=bodies) as (options, asked):
        writer = BatchWriter(options)
        writer.abort([None, None])
        assert [path for path, _ in asked] == ["/outbox/discard"]
    told = json.loads(bodies[0])
    assert (told["query"], told["epoch"], told["batch"]) == (writer._query, 1, 0)
    assert told["partition"] is None


def test_a_streaming_batch_that_failed_is_given_back_as_well() -> None:
    bodies: list[bytes] = []
    with answering((200, {}), bodies=bodies) as (options, _):
        StreamWriter(options).abort([None, StagedTask("q", 3, 7, 0, 5, 1, 1, 7)], 7)
    told = json.loads(bodies[0])
    assert (told["query"], told["epoch"], told["batch"]) == ("q", 3, 7)


class Task:
    """As much of Spark's TaskContext as a writer asks."""

    def partitionId(self) -> int:  # noqa: N802
        return 2

    def taskAttemptId(self) -> int:  # noqa: N802
        return 17


def staged(options: SinkOptions, rows: Sequence[str | None]) -> StagedTask:
    return stage_task(options, "q", "r", 0, [batch(value=list(rows))], once=False)


def test_a_task_that_fails_takes_back_what_it_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal_spark.sink.TaskContext.get", Task)
    bodies: list[bytes] = []
    with answering((200, {"epoch": 4, "sealed": False}), bodies=bodies) as (options, asked):
        with pytest.raises(UsageError, match="no value"):
            staged(options, [*map(str, range(CHUNK_ROWS_MAX)), None])
        assert [path for path, _ in asked] == [
            f"/outbox/{w}" for w in ("epoch", "stage", "discard")
        ]
    told = json.loads(bodies[-1])
    assert (told["epoch"], told["partition"], told["attempt"]) == (4, 2, 17)


def test_a_replay_is_not_staged_and_yet_known_by_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal_spark.sink.TaskContext.get", Task)
    rows = list(map(str, range(3 * CHUNK_ROWS_MAX)))
    with answering((200, {"epoch": 4, "sealed": False})) as (options, _):
        first = staged(options, rows)
    with answering((200, {"epoch": 5, "sealed": True})) as (options, asked):
        again, other = staged(options, rows[::-1]), staged(options, rows[1:])
        assert [path for path, _ in asked].count("/outbox/stage") == 2, "one chunk each was enough"
    assert (first.chunks, again.chunks) == (3, 0)
    assert (first.rows, first.digest) == (again.rows, again.digest)
    assert first.digest != other.digest


def test_a_seal_says_what_the_batch_is_made_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"q"}')
    (tmp_path / "offsets" / "7").write_text('v1\n{}\n{"a":1}')
    bodies: list[bytes] = []
    answer = {"rows": 0, "replayed": True, "changed": True}
    with answering((200, answer), bodies=bodies) as (options, _):
        writer = StreamWriter(replace(options, checkpoint=str(tmp_path)))
        tasks = [StagedTask("q", 1, 7, task, 5, 1, 10, 2**256 - 1) for task in range(2)]
        writer.commit(tasks, 7)
    told = json.loads(bodies[0])["fingerprint"]
    assert (told["rows"], told["digest"], told["source"]) == (20, "f" * 63 + "e", '{"a":1}')
    assert len(told["plan"]) == 64
    assert "those of the first time stand" in caplog.text


def test_a_batch_is_sealed_by_what_its_tasks_said(tmp_path: Path) -> None:
    with answering((200, {"rows": 1, "replayed": False})) as (options, asked):
        seal_batch(options, [], 0)
        assert asked == [], "no task, no row"
        seal_batch(options, [StagedTask("q", 1, 0, 0, 5, 1, 1, 7), None], 0)
        assert [path for path, _ in asked] == ["/outbox/seal"]
        with pytest.raises(UsageError, match=r"epochs \[1, 2\]: another driver took over"):
            seal_batch(options, [StagedTask("q", e, 0, 0, 5, 1, 1, 7) for e in (1, 2)], 0)
