"""`shoal pipeline vehicles`: what it refuses, and what it says of queries that run."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from shoal_city.tables.queries import Batch, Sum, _behind, follow
from tests.cli.test_app import ends

NEEDED = (
    *("pipeline", "vehicles", "--servers", "http://127.0.0.1:1", "--stream", "0xabc/vehicles"),
    *("--outbox", "http://127.0.0.1:2", "--token", "env:TOKEN"),
)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "name a stream with --alerts"),
        (["--alerts", "s", "--as-live"], "--as-live is for --history"),
        (["--alerts", "s", "--history", "--once"], "--once is for live"),
        (["--alerts", "s", "--option", "mode"], "write NAME=VALUE"),
        (["--alerts", "s", "--environment", "none.zip"], "no file none.zip"),
    ],
)
def test_misuse_is_explained(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends(*NEEDED, *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert complaint in printed.err


def test_the_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("pipeline", "vehicles", "--help") == 0
    assert "Example: shoal pipeline vehicles" in capsys.readouterr().out


def offset(**seqs: int) -> str:
    """Partitions by their number, with the log in front: a0=5."""
    return json.dumps({"v": 1, "p": {k[1:]: {"log": k[0], "seq": n} for k, n in seqs.items()}})


def test_how_far_behind_a_batch_is_counts_logs_that_it_reads() -> None:
    assert _behind(offset(a0=5, a1=7), offset(a0=9, a1=7)) == 4
    assert _behind(offset(a0=5), offset(b0=9)) == 0, "another node's log has other numbers"
    assert _behind(offset(a0=5), None) == 0


def progress(batch: int, rows: int, out: int | None, *, idle: bool = False) -> Any:
    source = SimpleNamespace(endOffset=offset(a0=rows), latestOffset=offset(a0=9))
    return SimpleNamespace(
        batchId=batch,
        numInputRows=rows,
        batchDuration=1500,
        durationMs={"triggerExecution": 1500} if idle else {"addBatch": 1400},
        sources=[source],
        observedMetrics={} if out is None else {"published": {"rows": out}},
    )


class Query:
    """A query of which everything has been said, and that ends when it is looked at again."""

    def __init__(self, *said: Any) -> None:
        self.recentProgress = list(said)
        self.looks = 2

    @property
    def isActive(self) -> bool:  # noqa: N802
        self.looks -= 1
        return self.looks > 0


class Queries:
    """As Live."""

    def __init__(self, **queries: Query) -> None:
        self.queries = queries
        self.stopped = False

    def check(self) -> None:
        """All is well."""

    def stop(self) -> None:
        self.stopped = True


def test_every_batch_is_told_once_and_summed_up() -> None:
    waiting = progress(1, 0, None, idle=True)
    live: Any = Queries(alerts=Query(progress(0, 4, 1), waiting, progress(1, 5, None), waiting))
    told: list[Batch] = []
    (total,) = follow(live, told.append, threading.Event())
    assert [(batch.batch, batch.rows, batch.out, batch.behind) for batch in told] == [
        (0, 4, 1, 5),
        (1, 5, 0, 4),
    ]
    assert isinstance(total, Sum)
    assert (total.table, total.batches, total.rows, total.out) == ("alerts", 2, 9, 1)
    assert live.stopped


def test_a_query_that_waits_has_nothing_to_tell() -> None:
    live: Any = Queries(alerts=Query(progress(0, 0, None, idle=True)))
    told: list[Batch] = []
    stop = threading.Event()
    stop.set()
    (total,) = follow(live, told.append, stop)
    assert (told, total.batches, live.stopped) == ([], 0, True)
