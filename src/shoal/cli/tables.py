"""Results as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Column, Table

from shoal.lab.results import StreamFigures
from shoal.lab.runner import RunResult
from shoal.lab.scenario import Scenario


def show_result(result: RunResult) -> None:
    """One run on stdout."""
    table = Table(title=f"{result.scenario}, seed {result.seed}", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in (*_figure_rows(result.figures), *_run_rows(result)):
        table.add_row(name, value)
    Console().print(table, markup=False)


def show_scenarios(scenarios: Sequence[Scenario]) -> None:
    """What can be run, on stdout."""
    table = Table(Column("name", no_wrap=True), "protocol", "nodes", "messages", "faults", "about")
    for scenario in scenarios:
        table.add_row(
            scenario.name,
            scenario.protocol,
            f"{scenario.network.nodes:,}",
            f"{scenario.workload.messages:,}",
            str(len(scenario.faults)),
            scenario.about,
        )
    Console().print(table, markup=False)


def _figure_rows(figures: StreamFigures) -> list[tuple[str, str]]:
    delay, hops, control = figures.delay_ms, figures.hops, figures.control
    rows = [
        ("nodes", f"{figures.nodes:,}"),
        ("messages published", f"{figures.published:,}"),
        (
            "deliveries",
            f"{figures.delivered:,} of {figures.expected:,} expected, {figures.lost:,} lost",
        ),
        ("duplicates", f"{figures.duplicates_per_message:.3f} per message and node"),
    ]
    if delay is not None and hops is not None:
        rows += [
            (
                "delay",
                f"mean {delay.mean:.1f} ms, p50 {delay.p50:.1f}, p99 {delay.p99:.1f}, "
                f"max {delay.max:.1f}",
            ),
            ("hops", f"mean {hops.mean:.2f}, max {hops.max}"),
        ]
    if figures.prediction is not None:
        told = figures.prediction
        rows.append(
            (
                "prediction",
                f"mean delay {told.estimated_ms:.1f} ms, measured {told.measured_ms:.1f} "
                f"({told.error_percent:+.2f} %); MAPE over {told.publishers:,} publishers "
                f"{told.mape_percent:.2f} %, worst {told.worst_percent:.2f} %",
            )
        )
    overlay = ", ".join(f"{count:,} of degree {d}" for d, count in figures.degree.nodes.items())
    rejected = ", ".join(f"{count:,} {reason}" for reason, count in figures.rejected.items())
    return [
        *rows,
        ("overlay", f"{overlay}; {'connected' if figures.connected else 'NOT connected'}"),
        (
            "control",
            f"{control.instructions:,} instructions, {control.handled:,} handled; "
            f"{control.links_made:,} links made, {control.links_cut:,} cut",
        ),
        ("rejected", rejected or "nothing"),
    ]


def _run_rows(result: RunResult) -> list[tuple[str, str]]:
    return [
        ("checks", f"safety {result.checks.safety}, liveness {result.checks.liveness}"),
        (
            "run",
            f"{result.simulated_seconds:.1f} simulated seconds, {result.events:,} events in "
            f"{result.cpu_seconds:.2f} CPU seconds ({result.events_per_cpu_second:,.0f} a second)",
        ),
        ("trace_hash", result.trace_hash),
    ]
