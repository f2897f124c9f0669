"""Small literal tables, and runs on disk made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shoal_lab.runs.run_files import RunInfo, provenance, write_run
from shoal_lab.runs.run_tables import run_table_schema

STREAM = "0x0/lab"

Rows = Sequence[Mapping[str, Any]]


def delivery(
    run: str,
    delay_tenths_ms: int,
    *,
    message: int = 0,
    node: int = 1,
    region: str = "here",
    hops: int = 1,
    duplicates: int = 0,
    due: bool = True,
) -> dict[str, Any]:
    return {
        "run": run, "stream": STREAM, "message": message, "publisher": 0, "node": node,
        "region": region, "delay_tenths_ms": delay_tenths_ms, "hops": hops,
        "duplicates": duplicates, "due": due,
    }  # fmt: skip


def message(run: str, number: int = 0, *, expected: int = 1, duplicates: int = 0) -> dict[str, Any]:
    return {
        "run": run, "message": number, "time_ns": number, "node": 0, "stream": STREAM,
        "partition": 0, "timestamp_ms": number, "sequence": 0, "publisher": bytes(20),
        "chain": "1", "size_bytes": 9, "expected": expected, "duplicates": duplicates,
    }  # fmt: skip


def node(run: str, number: int = 0) -> dict[str, Any]:
    id = number.to_bytes(20, "big")
    return {"run": run, "node": number, "id": id, "region": "here", "ready_ns": 0}


def table_delay(run: str, a: str, b: str, delay_us: int) -> dict[str, Any]:
    return {"run": run, "a": a, "b": b, "delay_us": delay_us}


def arrow_table(name: str, rows: Rows) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=run_table_schema(name))


def edge(run: str, a: int, b: int, delay_us: int, stream: str = STREAM) -> dict[str, Any]:
    return {"run": run, "stream": stream, "a": a, "b": b, "delay_us": delay_us}


def pair(run: str, a: int, b: int, count: int) -> dict[str, Any]:
    return {"run": run, "a": a, "b": b, "count": count}


def diameter(run: str, links: int, *, nodes: int = 64, degree: int = 4) -> dict[str, Any]:
    return {
        "run": run, "overlay": 0, "nodes": nodes, "degree": degree, "diameter": links,
        "hops_mean": 3.0, "bound_low": 1, "bound_high": 9,
    }  # fmt: skip


def settings(name: str, nodes: int = 32, degree: int = 4, **more: Any) -> dict[str, Any]:
    """A scenario as run files hold it."""
    network = {"nodes": nodes, "degree": degree, "delays": "aws"}
    return {"name": name, "about": "", "seed": 1, "network": network, **more}


def write(
    folder: Path,
    run: str,
    *,
    scenario: Mapping[str, Any] | None = None,
    seed: int = 1,
    figures: Mapping[str, Any] | None = None,
    **tables: Rows,
) -> Path:
    """A run of these rows; a table that is not named is left out."""
    info = RunInfo(
        run=run,
        seed=seed,
        scenario=scenario or {},
        result={"figures": figures or {}, "replay": f"shoal lab run {run}"},
        provenance=provenance(),
    )
    made = {name: arrow_table(name, rows) for name, rows in tables.items()}
    return write_run(folder, info, lambda: made)


def write_simple(folder: Path, run: str, delays: Sequence[int] = (10, 20)) -> Path:
    """One message, delivered to a few nodes."""
    return write(
        folder,
        run,
        deliveries=[delivery(run, delay, node=n) for n, delay in enumerate(delays, 1)],
        messages=[message(run, expected=len(delays))],
        nodes=[node(run, n) for n in range(len(delays) + 1)],
    )


def flip_a_bit(file: Path, column: str) -> None:
    """Change the last byte of a column's pages: nothing but a checksum tells."""
    group = pq.read_metadata(file).row_group(0)
    (pages,) = (
        group.column(number)
        for number in range(group.num_columns)
        if group.column(number).path_in_schema == column
    )
    begin = pages.dictionary_page_offset or pages.data_page_offset
    content = bytearray(file.read_bytes())
    content[begin + pages.total_compressed_size - 1] ^= 1
    file.write_bytes(content)
