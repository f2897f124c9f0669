"""The past of a stream as a table: who said how much, when.

    ./run                                                # it says SERVERS and STREAM; leave it
    .venv/bin/python examples/read_history.py --servers SERVERS --stream STREAM

Signatures are checked by Spark's executors; a message that is not what its publisher signed is a
row with an `error`.
"""

import argparse

from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from shoal_spark.session import SessionSettings, spark_session


def main() -> None:
    parser = argparse.ArgumentParser(description="The past of a stream as a table.")
    parser.add_argument("--servers", required=True, help="gateways of storage nodes")
    parser.add_argument("--stream", required=True)
    chosen = parser.parse_args()
    with spark_session(SessionSettings(driver_memory="1g", shuffle_partitions=1)) as spark:
        stream = spark.read.format("shoal").options(servers=chosen.servers, stream=chosen.stream)
        sums = (
            stream.load()
            .groupBy("publisher")
            .agg(
                F.count("*").alias("messages"),
                F.count("error").alias("bad"),
                F.sum(F.length("content")).alias("bytes"),
                F.min("timestamp").alias("first"),
                F.max("timestamp").alias("last"),
            )
        )
        for row in sums.select(F.to_json(F.struct("*")).alias("line")).collect():
            print(row.line)


if __name__ == "__main__":
    main()
