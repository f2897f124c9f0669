"""The `shoal demo` command and its live table."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from shoal_city.demo.messages import DemoSettings
    from shoal_city.demo.summary import Delays, PipelineSummary, Snapshot, Summary


def demo(
    seconds: Annotated[
        float | None,
        typer.Option(min=1, help="Publish for so long, then sum up. Default: until Ctrl-C."),
    ] = None,
    spark: Annotated[
        bool, typer.Option(help="Run Spark beside the network, or the network alone.")
    ] = True,
    nodes: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=256,
            help="Nodes on this machine. [default: 8, without Spark 16]",
            show_default=False,
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            help="Processes to spread over. [default: 2, without Spark 4]",
            show_default=False,
        ),
    ] = None,
    rate: Annotated[float, typer.Option(min=0.1, help="Messages a second.")] = 653.0,
    size: Annotated[int, typer.Option(min=110, help="Bytes of content of each, at least.")] = 308,
    drop: Annotated[
        int, typer.Option(min=0, help="Lose so many messages at one subscriber, on purpose.")
    ] = 0,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on the last line.")] = False,
) -> None:
    """From vehicle to alert on this machine: nodes on loopback carry a city's vehicle stream, Spark
    watches it, and its alerts come back over the network; nothing may get lost.

    The publisher and every subscriber keep journals, and a process of its own compares them. The
    exit code is 1 if a message or an alert was lost, came twice, or was never published, and if
    Spark has not read everything a minute and a half after the last message. --no-spark shows the
    network alone, and starts at once.

    Example: shoal demo --seconds 20
    """
    from shoal.base.errors import UsageError
    from shoal_city.demo import messages as default
    from shoal_city.demo.messages import DemoSettings

    if nodes is None:
        nodes = default.NODES_WITH_SPARK if spark else default.NODES
    if processes is None:
        processes = default.PROCESSES_WITH_SPARK if spark else default.PROCESSES
    if processes > nodes:
        raise UsageError(f"{processes} processes for {nodes} nodes: give each one node at least")
    if spark:
        _need_spark()
    settings = DemoSettings(
        nodes=nodes,
        processes=processes,
        rate=rate,
        size_bytes=size,
        seconds=seconds,
        drop=drop,
        spark=spark,
    )
    summary = _run(settings)
    if json:
        import msgspec

        print(msgspec.json.encode(summary).decode())
    else:
        _show_summary(summary)
    if not summary.good:
        raise typer.Exit(1)


def _need_spark() -> None:
    """Before a network is started for nothing."""
    from importlib.util import find_spec

    from shoal.base.errors import UsageError
    from shoal_spark.session import REMEDY

    if find_spec("pyspark") is None:
        raise UsageError(f"Spark is not installed: {REMEDY}; or say --no-spark")


def _run(settings: DemoSettings) -> Summary:
    from rich.console import Console
    from rich.live import Live

    from shoal.base.errors import ShoalError
    from shoal_city.demo.coordinator import run_demo

    console = Console(stderr=True)

    async def main() -> Summary:
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            if console.is_terminal:
                live = stack.enter_context(Live(console=console, refresh_per_second=4))

                def show(snapshot: Snapshot) -> None:
                    live.update(_live_table(snapshot, settings))

                def note(line: str) -> None:
                    live.console.print(line, markup=False, highlight=False, soft_wrap=True)

            else:
                print(
                    f"{settings.nodes} nodes in {settings.processes} processes, "
                    f"{settings.rate:g} messages/s of {settings.size_bytes} bytes",
                    file=sys.stderr,
                )
                shown_s = 0.0

                def show(snapshot: Snapshot) -> None:
                    nonlocal shown_s
                    if snapshot.seconds - shown_s >= 5:
                        shown_s = snapshot.seconds
                        note(
                            f"{snapshot.seconds:5.0f} s  published {snapshot.published:,}  "
                            f"delivered {snapshot.delivered:,}{_spark_so_far(snapshot)}"
                        )

                def note(line: str) -> None:
                    print(line, file=sys.stderr, flush=True)

            stop = asyncio.Event()
            task = asyncio.ensure_future(run_demo(settings, show, note, stop))

            def stopped() -> None:
                """In good order, with a summary; asked again, at once."""
                if stop.is_set():
                    task.cancel()
                stop.set()

            for name in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(name, stopped)
            return await task

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise ShoalError("stopped without a summary") from None


def _live_table(snapshot: Snapshot, settings: DemoSettings) -> Table:
    from rich.table import Table

    table = Table(title=f"{settings.nodes} nodes, {snapshot.seconds:.0f} s", show_header=False)
    for name, value in _rows(snapshot):
        table.add_row(name, value)
    return table


def _rows(snapshot: Snapshot) -> list[tuple[str, str]]:
    delay, received = snapshot.delay_ms, snapshot.received
    degrees = ", ".join(
        f"{snapshot.degrees.count(d)} of degree {d}" for d in sorted(set(snapshot.degrees))
    )
    return [
        ("published", f"{snapshot.published:,}"),
        ("delivered", f"{snapshot.delivered:,} to {snapshot.nodes - 1} subscribers"),
        ("duplicates", f"{snapshot.duplicates / received if received else 0:.2f} per delivery"),
        ("delay", f"p50 {_ms(delay.p50)}, p99 {_ms(delay.p99)}"),
        ("overlay", degrees),
        *_spark_rows(snapshot),
    ]


def _spark_rows(snapshot: Snapshot) -> list[tuple[str, str]]:
    if snapshot.spark is None:
        return []
    return [
        ("read by Spark", f"{min(snapshot.spark.rows.values()):,}"),
        ("alerts", f"{snapshot.alerts:,} arrived"),
    ]


def _spark_so_far(snapshot: Snapshot) -> str:
    if snapshot.spark is None:
        return ""
    return f"  read by Spark {min(snapshot.spark.rows.values()):,}  alerts {snapshot.alerts:,}"


def _show_summary(summary: Summary) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Nothing lost" if summary.good else "SOMETHING IS WRONG", show_header=False)
    table.add_row("published", f"{summary.published:,} ({summary.rate:.0f}/s)")
    table.add_row("delivered", f"{summary.delivered:,} of {summary.expected:,}")
    table.add_row("lost", f"{summary.lost:,}")
    if summary.double or summary.invented:
        table.add_row("double, invented", f"{summary.double:,}, {summary.invented:,}")
    table.add_row("duplicates", f"{summary.duplicates_per_message:.2f} per delivery, dropped")
    table.add_row("delay", f"p50 {_ms(summary.delay_ms.p50)}, p99 {_ms(summary.delay_ms.p99)}")
    table.add_row("CPU", f"{summary.cpu_seconds:.1f} s, of the network")
    for name, value in _pipeline_rows(summary.pipeline):
        table.add_row(name, value)
    Console().print(table)


def _pipeline_rows(pipeline: PipelineSummary | None) -> list[tuple[str, str]]:
    if pipeline is None:
        return []
    rows = [
        ("read by Spark", f"{pipeline.rows:,}, in {pipeline.batches:,} batches"),
        ("alerts", f"{pipeline.alerts:,}, {pipeline.alerts_delivered:,} of them delivered"),
        ("alerts lost", f"{pipeline.alerts_lost:,}"),
        ("from vehicle to alert", _seconds(pipeline.delay_ms)),
        ("speeds", f"{pipeline.speeds:,} rows published"),
    ]
    if pipeline.behind:
        lag = f"{pipeline.behind:,} messages not read: this machine is too busy for it"
        rows.insert(1, ("SPARK IS BEHIND", lag))
    if pipeline.alerts_double or pipeline.alerts_invented:
        wrong = f"{pipeline.alerts_double:,}, {pipeline.alerts_invented:,}"
        rows.insert(-2, ("alerts double, invented", wrong))
    return rows


def _seconds(delay: Delays) -> str:
    if delay.p50 is None or delay.p99 is None:
        return "no alert yet: run it for longer"
    return f"p50 {delay.p50 / 1000:.1f} s, p99 {delay.p99 / 1000:.1f} s"


def _ms(value: float | None) -> str:
    return "none yet" if value is None else f"{value:.1f} ms"
