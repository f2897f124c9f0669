"""What a report over 20 million deliveries costs: Spark beside DuckDB, on the same files.

    .venv/bin/python benchmarks/report.py [--json] [--rows 20000000] [--runs 16] [--rounds 8]
    .venv/bin/python benchmarks/report.py --at-most 3.5
    .venv/bin/python benchmarks/report.py --command --rows 100000000

Both give, per run, exact p50, p95 and p99, mean, least and longest delay, hops, duplicates and
coverage, and must agree. CPU-seconds count, of Python and of the JVM with its compiler and its
collector, the best of several rounds in a session that is warm. The start of the session and the
first round, in which the JVM compiles, are shown apart. The exit code is 1 if Spark takes more than
--at-most times the CPU-seconds of DuckDB, by default 5; of few rows it does.

--command is about size: `shoal lab report` as it is, in processes of its own, and the most memory
that all of them together held.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from shoal_lab.report.analysis.deliveries import summarise_runs
from shoal_lab.runs.run_files import RunInfo, provenance, write_run
from shoal_lab.runs.run_frames import find_runs, read_runs
from shoal_lab.runs.run_tables import run_table_schema
from shoal_spark.session import SessionSettings, spark_session

ROWS = 20_000_000
RUNS = 16
ROUNDS = 8  # the JVM goes on compiling for six or so
NODES = 2048
CORES = 2
RATIO_MAX = 5.0
"""Of Spark's CPU-seconds over DuckDB's: what a report may cost that can also run on a cluster."""
STREAM = "0x1111111111111111111111111111111111111111/lab"

COLUMNS = (
    "run", "messages", "expected", "delivered", "coverage", "duplicates_per_message", "mean_ms",
    "min_ms", "max_ms", "p50_ms", "p95_ms", "p99_ms", "hops_mean", "hops_max",
)  # fmt: skip

QUERY = """
select d.run, messages, expected, delivered, delivered / expected,
    (d.duplicates + returned) / (d.delivered + messages),
    mean_ms, min_ms, max_ms, p[1] / 10, p[2] / 10, p[3] / 10, hops_mean, hops_max
from (
    select run, count(*) as delivered, sum(duplicates) as duplicates,
        avg(delay_tenths_ms) / 10 as mean_ms, min(delay_tenths_ms) / 10 as min_ms,
        max(delay_tenths_ms) / 10 as max_ms,
        quantile_cont(delay_tenths_ms, [0.5, 0.95, 0.99]) as p,
        avg(hops) as hops_mean, max(hops) as hops_max
    from read_parquet(?) where due group by run
) d join (
    select run, count(*) as messages, sum(expected) as expected, sum(duplicates) as returned
    from read_parquet(?) group by run
) m on d.run = m.run
"""


class Result(msgspec.Struct, frozen=True):
    """What was measured."""

    rows: int
    runs: int
    session_s: float
    """Wall time, once."""
    first_cpu_s: float
    spark_cpu_s: float
    duckdb_cpu_s: float
    ratio: float


class Size(msgspec.Struct, frozen=True):
    """What the command took, with all of its processes."""

    rows: int
    runs: int
    wall_s: float
    cpu_s: float
    peak_gib: float
    """Resident memory, summed over processes: what they share is counted more than once."""


SCENARIO = {"name": "streams-propagation", "network": {"nodes": NODES, "degree": 4}}


def generate(folder: Path, rows: int, runs: int) -> None:
    """Runs whose deliveries look like those of 2,048 nodes: a mean of 288 ms, 9 hops."""
    for number in range(runs):
        run = f"streams-propagation-{number}-5f2a9c01"
        info = RunInfo(run=run, seed=number, scenario=SCENARIO, result={}, provenance=provenance())
        write_run(folder, info, partial(tables, run, number, rows // runs))


def tables(run: str, seed: int, rows: int) -> dict[str, pa.Table]:
    rng = np.random.default_rng(seed)
    messages = -(-rows // (NODES - 1))
    numbers = np.arange(rows)
    deliveries = {
        "run": _text([run], np.zeros(rows, np.int32)),
        "stream": _text([STREAM], np.zeros(rows, np.int32)),
        "message": numbers // (NODES - 1),
        "publisher": numbers // (NODES - 1) % NODES,
        "node": numbers % (NODES - 1),
        "region": _text([f"region-{n}" for n in range(16)], (numbers % 16).astype(np.int32)),
        "delay_tenths_ms": np.rint(rng.gamma(12, 240, rows)).astype(np.int64),
        "hops": rng.integers(1, 18, rows),
        "duplicates": rng.integers(0, 5, rows),
        "due": np.ones(rows, np.bool_),
    }
    expected = np.full(messages, NODES - 1)
    published = {
        "run": [run] * messages,
        "message": np.arange(messages),
        "time_ns": np.arange(messages),
        "node": np.arange(messages) % NODES,
        "stream": [STREAM] * messages,
        "partition": np.zeros(messages, np.int64),
        "timestamp_ms": np.arange(messages),
        "sequence": np.zeros(messages, np.int64),
        "publisher": [bytes(20)] * messages,
        "chain": ["1"] * messages,
        "size_bytes": np.full(messages, 300),
        "expected": expected,
        "duplicates": np.full(messages, 3),
    }
    nodes = {
        "run": [run] * NODES,
        "node": np.arange(NODES),
        "id": [n.to_bytes(20, "big") for n in range(NODES)],
        "region": [f"region-{n % 16}" for n in range(NODES)],
        "ready_ns": np.zeros(NODES, np.int64),
    }
    # Four neighbours each, both ways; regions are as far from each other as on one continent.
    a = np.repeat(np.arange(NODES), 2)
    b = (a + 1 + rng.integers(0, NODES - 1, len(a))) % NODES
    links = {
        "run": [run] * 2 * len(a),
        "stream": [STREAM] * 2 * len(a),
        "a": np.concatenate([a, b]),
        "b": np.concatenate([b, a]),
        "delay_us": np.tile(rng.integers(1_000, 150_000, len(a)), 2),
    }
    regions = [(f"region-{x}", f"region-{y}") for x in range(16) for y in range(16)]
    apart = {
        "run": [run] * len(regions),
        "a": [x for x, _ in regions],
        "b": [y for _, y in regions],
        "delay_us": rng.integers(1_000, 150_000, len(regions)),
    }
    made = {
        "deliveries": deliveries, "messages": published, "nodes": nodes, "topologies": links,
        "delays": apart,
    }  # fmt: skip
    return {name: _table(name, columns) for name, columns in made.items()}


def _text(values: list[str], indices: Any) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(indices, pa.array(values))


def _table(name: str, columns: dict[str, Any]) -> pa.Table:
    arrays = [
        column if isinstance(column, pa.DictionaryArray) else pa.array(column)
        for column in columns.values()
    ]
    fields = [
        pa.field(field.name, array.type, nullable=False)
        for field, array in zip(run_table_schema(name), arrays, strict=True)
    ]
    return pa.Table.from_arrays(
        arrays, schema=pa.schema(fields, metadata=run_table_schema(name).metadata)
    )


def measure(session: SparkSession, folder: Path, rounds: int, session_s: float = 0.0) -> Result:
    """Both in turn, over a folder of runs; AssertionError if they do not agree."""

    def with_spark() -> list[tuple[Any, ...]]:
        runs = read_runs(session, str(folder))
        summary = summarise_runs(runs.table("deliveries"), runs.table("messages"))
        return [tuple(row) for row in summary.select(*COLUMNS).collect()]

    found, _ = find_runs(str(folder))
    files = {
        name: [path.removeprefix("file://") for run in found for path in run.files[name]]
        for name in ("deliveries", "messages")
    }
    database = duckdb.connect()
    database.execute(f"set threads = {CORES}")

    def with_duckdb() -> list[tuple[Any, ...]]:
        both = [files["deliveries"], files["messages"]]
        rows: list[tuple[Any, ...]] = database.execute(QUERY, both).fetchall()
        return rows

    cpu_s = _cpu_clock(session)
    first_cpu_s, ours = _timed(with_spark, cpu_s)
    spark_s, duckdb_s = [], []
    for _ in range(rounds):
        theirs_s, theirs = _timed(with_duckdb, time.process_time)
        _compare(ours, theirs)
        duckdb_s.append(theirs_s)
        ours_s, ours = _timed(with_spark, cpu_s)
        spark_s.append(ours_s)
    rows = sum(run.info["tables"]["deliveries"] for run in found)
    best, theirs_best = min(spark_s), min(duckdb_s)
    return Result(rows, len(found), session_s, first_cpu_s, best, theirs_best, best / theirs_best)


def measure_command(folder: Path) -> Size:
    """The command itself, watched from outside."""
    begin_s, peak, cpu_s = time.monotonic(), 0, {}
    page = folder / "report.html"
    words = [sys.executable, "-m", "shoal.cli", "lab", "report", str(folder), "--out", str(page)]
    with subprocess.Popen(words) as process:
        while process.poll() is None:
            held = 0
            for pid in _tree(process.pid):
                try:
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue  # it has ended
                cpu_s[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                held += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
            peak = max(peak, held)
            time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"the command ended with {process.returncode}")
    found, _ = find_runs(str(folder))
    rows = sum(run.info["tables"]["deliveries"] for run in found)
    wall_s = time.monotonic() - begin_s
    return Size(rows, len(found), wall_s, sum(cpu_s.values()), peak / 2**30)


def _tree(pid: int) -> Iterator[int]:
    """A process and all that come from it."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            text = children.read_text()
        except OSError:
            continue
        for child in text.split():
            yield from _tree(int(child))


def _timed(
    work: Callable[[], list[tuple[Any, ...]]], cpu_s: Callable[[], float]
) -> tuple[float, list[tuple[Any, ...]]]:
    begin_s = cpu_s()
    rows = work()
    return cpu_s() - begin_s, rows


def _cpu_clock(session: SparkSession) -> Callable[[], float]:
    """CPU-seconds of this process and of its JVM, with whatever that has started and ended."""
    gateway: Any = session.sparkContext._gateway
    stat = Path(f"/proc/{gateway.proc.pid}/stat")
    ticks_s = os.sysconf("SC_CLK_TCK")

    def clock() -> float:
        fields = stat.read_text().rpartition(")")[2].split()
        return time.process_time() + sum(map(int, fields[11:15])) / ticks_s

    return clock


def _compare(ours: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]]) -> None:
    for mine, other in zip(sorted(ours), sorted(theirs), strict=True):
        for name, a, b in zip(COLUMNS, mine, other, strict=True):
            same = a == b if isinstance(a, str) else math.isclose(a, b, rel_tol=1e-9)
            if not same:
                raise AssertionError(f"{mine[0]}: {name} is {a} with Spark, {b} with DuckDB")


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description="A report's CPU-seconds, Spark beside DuckDB.")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--at-most",
        type=float,
        default=RATIO_MAX,
        help="times DuckDB that Spark may take; above it the exit code is 1",
    )
    parser.add_argument("--command", action="store_true", help="memory of `shoal lab report`")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        print(f"generating {options.rows:,} rows ...", file=sys.stderr, flush=True)
        generate(Path(name), options.rows, options.runs)
        print("measuring ...", file=sys.stderr, flush=True)
        if options.command:
            result: Result | Size = measure_command(Path(name))
        else:
            begin_s = time.monotonic()
            with spark_session(SessionSettings(master=f"local[{CORES}]")) as session:
                session_s = time.monotonic() - begin_s
                result = measure(session, Path(name), options.rounds, session_s)
    if options.json:
        said = {"benchmark": "report", **msgspec.to_builtins(result)}
        print(msgspec.json.encode(said).decode())
    elif isinstance(result, Size):
        print(f"{result.rows:,} deliveries in {result.runs} runs: `shoal lab report`")
        print(f"{'most memory':<24}{result.peak_gib:>8.2f} GiB")
        print(f"{'CPU':<24}{result.cpu_s:>8.2f} s, of {result.wall_s:.0f} s of wall time")
    else:
        print(f"{result.rows:,} deliveries in {result.runs} runs, CPU-seconds for one report")
        print(f"{'DuckDB':<24}{result.duckdb_cpu_s:>8.2f}")
        print(f"{'Spark, warm':<24}{result.spark_cpu_s:>8.2f}{result.ratio:>8.2f} x DuckDB")
        print(f"{'Spark, first':<24}{result.first_cpu_s:>8.2f}")
        print(f"{'start of the session':<24}{result.session_s:>8.2f} s of wall time")
    if isinstance(result, Result) and not result.ratio <= options.at_most:
        sys.exit(
            f"too slow: Spark takes {result.ratio:.2f} times the CPU-seconds of DuckDB, more than "
            f"--at-most {options.at_most:g}"
        )


if __name__ == "__main__":
    main()
