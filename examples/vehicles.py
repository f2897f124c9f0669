"""Alerts of a city's vehicles, live, as lines of JSON.

    ./run                                                # it says SERVERS and STREAM; leave it
    .venv/bin/python examples/vehicles.py --servers SERVERS --stream STREAM

The pipeline's tables are DataFrames like any other. Here one goes to a function of our own; to
publish it to a stream, give `start_live` the sink `publish(...)` instead.
"""

import argparse

from pyspark.sql import DataFrame

from shoal_city.tables.config import Rules
from shoal_city.tables.queries import start_live
from shoal_spark.session import SessionSettings, spark_session


def show(table: DataFrame, batch: int) -> None:
    """Called with every micro-batch."""
    for row in table.select("value").collect():
        print(row.value, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Alerts of a city's vehicles, live.")
    parser.add_argument("--servers", required=True, help="gateways of storage nodes")
    parser.add_argument("--stream", required=True)
    parser.add_argument("--checkpoints", default="checkpoints/example")
    parser.add_argument("--once", action="store_true", help="end with what is stored now")
    chosen = parser.parse_args()
    # The demo's fleet has a clock of its own, sixty times as fast as ours.
    rules = Rules(played_back=True, lateness_s=20.0, skew_s=65.0)
    trigger = {"availableNow": True} if chosen.once else {"processingTime": "1 second"}
    with spark_session(SessionSettings(driver_memory="1g", shuffle_partitions=1)) as spark:
        stream = spark.readStream.format("shoal").options(
            servers=chosen.servers, stream=chosen.stream, startingOffsets="earliest"
        )
        sinks = {"alerts": lambda table: table.writeStream.foreachBatch(show)}
        start_live(stream.load(), sinks, chosen.checkpoints, rules, trigger=trigger).wait()


if __name__ == "__main__":
    main()
