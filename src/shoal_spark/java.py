"""Which Java Spark gets: the user's, or the one that set-up put beside our Python.

Standard library only: scripts/environment.py asks here before anything is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

VERSIONS = (17, 21)
"""What Spark 4.3 runs on."""

OWN_FOLDER = "java"
"""Under sys.prefix: where set-up unpacks a Java of our own."""

_VERSION = re.compile(r'version "(\d+)')
_START_S_MAX = 30  # a Java that takes longer to say its version hangs


class NoJava(Exception):
    """None of the usual places has a Java that Spark runs on; says where it looked."""


def find_java(environment: Mapping[str, str], prefix: Path) -> Path:
    """The home of a fitting Java: JAVA_HOME, then PATH, then our own; NoJava if there is none."""
    seen = []
    for source, home in _candidates(environment, prefix):
        version = java_version(home)
        if version in VERSIONS:
            return home
        seen.append(f"{source} has {'none' if version is None else f'Java {version}'}")
    wanted = " or ".join(map(str, VERSIONS))
    raise NoJava(f"Spark needs Java {wanted}: {', '.join(seen)}")


def java_version(home: Path) -> int | None:
    """The major version of the Java at home, or None if there is none that starts."""
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return None
    try:
        said = subprocess.run(
            [program, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_START_S_MAX,
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(said)
    return int(found[1]) if found else None


def own_java(prefix: Path | None = None) -> Path:
    """Where set-up puts a Java of our own."""
    return (Path(sys.prefix) if prefix is None else prefix) / OWN_FOLDER


def _candidates(environment: Mapping[str, str], prefix: Path) -> Iterator[tuple[str, Path]]:
    home = environment.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home)
    program = shutil.which("java", path=environment.get("PATH", ""))
    # Through the links of alternatives: the home is where the program really is.
    yield "PATH", Path(program).resolve().parents[1] if program else Path("nowhere")
    yield "our own environment", own_java(prefix)


# Spark's classes as a JVM has them in memory, kept in a file: a session then begins with them.
#
# scripts/spark_classes.py makes the file. The JVM looks by itself whether it is of the same jars
# and of the same Java, and goes without it if not.


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
