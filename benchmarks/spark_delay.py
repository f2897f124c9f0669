"""From a vehicle's message to the alert at a subscriber, with Spark in between.

    .venv/bin/python benchmarks/spark_delay.py [--json] [--seconds 120] [--rate 653] [--nodes 8]

`shoal demo` runs: a fleet publishes, a local network delivers, a storage node keeps, Spark reads
its log live and finds out which vehicles are stuck or bunched, and publishes that through an
outbox; a subscriber gets it. Delay is from the publication of the reading that makes it an alert
to the alert's arrival. In it is the time for which the pipeline waits for late readings, which is a
choice of its rules, and is told beside it; what is left is batches, Spark and the network. Alerts
that are lost or double, or a query that does not keep up, are a failure.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

import msgspec

from shoal_city.demo.message_source import SPEED, fleet_rules

SECONDS, RATE, NODES = 120, 653.0, 8
START_S = 300  # Spark starts, and reads what is left at the end, on a busy machine


class Result(msgspec.Struct, frozen=True):
    """What was measured."""

    rate: float
    """Messages a second that were published in fact."""
    messages: int
    alerts: int
    p50_s: float
    p99_s: float
    waited_s: float
    """Of each delay, for late readings."""


def measure(seconds: int, rate: float, nodes: int) -> Result:
    """Run the demo; SystemExit if it did not go well."""
    options = {"--seconds": seconds, "--rate": rate, "--nodes": nodes}
    words = [str(word) for option in options.items() for word in option]
    done = subprocess.run(
        [sys.executable, "-m", "shoal.cli", "demo", *words, "--json"],
        stdout=subprocess.PIPE,
        timeout=seconds + START_S,
        check=False,
    )
    if done.returncode:
        sys.exit(f"the demo did not go well: {done.stdout.decode()}")
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    pipeline = summary["pipeline"]
    rules = fleet_rules()
    return Result(
        rate=round(summary["published"] / seconds, 1),
        messages=summary["published"],
        alerts=pipeline["alerts"],
        p50_s=round(pipeline["delay_ms"]["p50"] / 1000, 2),
        p99_s=round(pipeline["delay_ms"]["p99"] / 1000, 2),
        waited_s=round((rules.lateness_s + rules.ahead_s + rules.skew_s) / SPEED, 2),
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=SECONDS)
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    result = measure(options.seconds, options.rate, options.nodes)
    if options.json:
        print(msgspec.json.encode(result).decode())
        return
    print(f"{result.messages} messages, {result.rate} a second; {result.alerts} alerts")
    print(f"from vehicle to alert: p50 {result.p50_s} s, p99 {result.p99_s} s")
    print(f"of which {result.waited_s} s are a wait for late readings")


if __name__ == "__main__":
    main()
