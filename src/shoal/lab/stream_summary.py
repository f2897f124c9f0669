"""The figures of a stream run, in words."""

from __future__ import annotations

from shoal.lab.kinds import Rows
from shoal.lab.results import StreamFigures


def stream_line(figures: StreamFigures) -> str:
    """The most important ones."""
    delay, hops = figures.delay_ms, figures.hops
    parts = [f"{figures.delivered:,} of {figures.expected:,} deliveries"]
    if delay is not None and hops is not None:
        parts.append(f"mean {delay.mean:.1f} ms, p99 {delay.p99:.1f}, hops {hops.mean:.2f}")
    parts.append(f"{figures.duplicates_per_message:.3f} duplicates")
    if figures.prediction is not None:
        parts.append(f"predicted {figures.prediction.error_percent:+.2f} %")
    return ", ".join(parts)


def stream_rows(figures: StreamFigures) -> Rows:
    """All of them, for a table."""
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
    if figures.held is not None:
        held = figures.held
        rows.append(
            (
                "held",
                f"{held.count:,} times, in the mean {held.late_ms_mean:.3f} ms longer than the "
                f"delay, at most {held.late_ms_max:.1f}; stood still for "
                f"{held.stood_still_s:.1f} s while others had all cores",
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
