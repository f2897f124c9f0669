"""The lines of compressed files as a frame.

Spark reads .bz2 (with several tasks), .gz and plain files by itself. It reads .zst too, but only
with windows up to 128 MiB, and that of Reddit's dumps has 2 GiB: these are unpacked in Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import fs

from shoal.base.errors import NotFound, ShoalError, UsageError
from shoal.pipeline.reading import resolve_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ZSTD = ".zst"
WINDOW_MAX = 1 << 31  # the largest that zstd writes
READ_BYTES = 1 << 20
LINES = pa.schema([("file", pa.string()), ("line", pa.string())])
LINES_DDL = "file string, line string"


class CutShort(ShoalError):
    """A compressed file that ends in the middle."""


def read_lines(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    """All lines of the files (file, line); NotFound if one is not there."""
    from pyspark.sql import functions as F  # noqa: N812

    uris = [_uri(file) for file in files]
    packed = [uri for uri in uris if uri.endswith(ZSTD)]
    others = [uri for uri in uris if not uri.endswith(ZSTD)]
    frames = []
    if packed:
        names = spark.createDataFrame([(uri,) for uri in packed], "file string")
        # Such a file cannot be split: a task for each.
        names = names.repartitionByRange(len(packed), "file")
        frames.append(names.mapInArrow(_unpack_all, LINES_DDL))
    if others:
        text = spark.read.option("__globPaths__", "false").text(others)
        frames.append(text.select(F.col("_metadata.file_path").alias("file"), "value"))
    lines = frames[0]
    for frame in frames[1:]:
        lines = lines.union(frame)
    return lines.toDF("file", "line")


def unpack_lines(uri: str) -> Iterator[list[bytes]]:
    """The lines of a .zst file, some at a time; CutShort if its end is missing."""
    import zstandard

    system, path, _ = resolve_folder(uri)
    unpacker = zstandard.ZstdDecompressor(max_window_size=WINDOW_MAX)
    frame, rest = unpacker.decompressobj(), b""
    try:
        with system.open_input_stream(path, compression=None) as source:
            while packed := source.read(READ_BYTES):
                while packed:
                    *lines, rest = (rest + frame.decompress(packed)).split(b"\n")
                    yield lines
                    packed = frame.unused_data if frame.eof else b""
                    if packed:  # another frame behind it
                        frame = unpacker.decompressobj()
    except zstandard.ZstdError as error:
        raise CutShort(f"{uri} cannot be unpacked: {error}: fetch it again") from error
    if not frame.eof:
        raise CutShort(f"{uri} ends in the middle: fetch it again")
    yield [rest] if rest else []


def _unpack_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for uri in batch.column("file").to_pylist():
            for lines in unpack_lines(uri):
                # As Spark reads text: what is no UTF-8 becomes a sign that says so.
                texts = [line.decode(errors="replace") for line in lines]
                yield pa.RecordBatch.from_pydict({"file": [uri] * len(texts), "line": texts}, LINES)


def _uri(file: str) -> str:
    system, path, prefix = resolve_folder(file)
    try:
        type = system.get_file_info(path).type
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error}") from error
    if type == fs.FileType.NotFound:
        raise NotFound(f"no file {file}: name a dump, RC_2007-10.zst or .bz2")
    return prefix + path
