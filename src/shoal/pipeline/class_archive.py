"""Spark's classes as a JVM has them in memory, kept in a file: a session then begins with them.

scripts/spark_classes.py makes the file. The JVM looks by itself whether it is of the same jars and
of the same Java, and goes without it if not.
"""

from __future__ import annotations

import sys
import zlib
from importlib.metadata import version
from pathlib import Path


def class_archive(java: Path) -> Path:
    """Where the archive of this Spark and this Java is, or would be."""
    try:
        build = (java / "release").read_bytes()
    except OSError:
        build = bytes(java)  # then it is known by its place
    name = f"spark-{version('pyspark')}-{zlib.crc32(build):08x}.jsa"
    return Path(sys.prefix) / "spark-classes" / name


def archive_options(java: Path) -> list[str]:
    """What the JVM is told; nothing if nobody has made an archive."""
    archive = class_archive(java)
    if not archive.exists():
        return []
    # One that it cannot use is no reason to say something.
    return [f'"-XX:SharedArchiveFile={archive}"', "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
