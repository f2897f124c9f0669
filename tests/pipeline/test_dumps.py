"""Packed files, line by line, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
import zstandard

from shoal_lab.scenarios.reddit_workload import READ_BYTES, CutShort, unpack_lines
from tests.pipeline.reddit_dumps import pack_zst


def lines(file: Path) -> list[bytes]:
    return [line for some in unpack_lines(str(file)) for line in some]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_lines_of_several_frames(tmp_path: Path, end: bytes) -> None:
    file = tmp_path / "RC.zst"
    first, second = b"one\ntw", b"o\n\nlast" + end
    file.write_bytes(pack_zst(first) + pack_zst(second))
    assert lines(file) == [b"one", b"two", b"", b"last"]


def test_a_window_as_large_as_in_the_dumps(tmp_path: Path) -> None:
    file = tmp_path / "RC.zst"
    file.write_bytes(pack_zst(b"line\n" * 3))
    assert zstandard.get_frame_parameters(file.read_bytes()).window_size == 1 << 31
    assert lines(file) == [b"line"] * 3


def test_more_than_is_read_at_a_time(tmp_path: Path) -> None:
    file = tmp_path / "RC.zst"
    texts = [b"%d" % (number * 7919**5) for number in range(200_000)]
    file.write_bytes(pack_zst(b"\n".join(texts)))
    assert file.stat().st_size > READ_BYTES
    assert lines(file) == texts


@pytest.mark.parametrize("damage", [lambda packed: packed[:-5], lambda packed: b"no zstd" + packed])
def test_a_damaged_file_is_no_shorter_one(tmp_path: Path, damage: object) -> None:
    file = tmp_path / "RC.zst"
    assert callable(damage)
    file.write_bytes(damage(pack_zst(b"a line\n" * 1000)))
    with pytest.raises(CutShort, match=r"RC\.zst .*: fetch it again"):
        lines(file)
