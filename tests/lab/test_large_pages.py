"""Large pages are asked for where they fit, and nowhere else."""

from __future__ import annotations

from shoal_lab.testbed.process_memory import PAGE_BYTES, LargePages, heaps

MAPS = """\
00400000-00c00000 r-xp 00000000 fe:00 1234                               /usr/bin/python3.11
01300000-01b00000 rw-p 00000000 00:00 0                                  [heap]
7f0000100000-7f0000700000 rw-p 00000000 00:00 0
7f0000800000-7f00009ff000 rw-p 00000000 00:00 0
7f0001000000-7f0001400000 rw-p 00000000 fe:00 5678                       /usr/lib/libpython3.11.so
7f0002000000-7f0002400000 r--p 00000000 00:00 0
7f0003000000-7f0003400000 rw-s 00000000 00:01 42                         /dev/zero (deleted)
7ffc00000000-7ffc00400000 rw-p 00000000 00:00 0                          [stack]
"""


def test_whole_pages_of_private_memory_are_found() -> None:
    assert heaps(MAPS) == [
        (0x01400000, 3 * PAGE_BYTES),  # from the first place where one begins
        (0x7F0000200000, 2 * PAGE_BYTES),
    ]


def test_memory_is_the_same_afterwards() -> None:
    kept = [bytes([number % 251]) * 4096 for number in range(4096)]
    LargePages()()
    assert all(value == bytes([number % 251]) * 4096 for number, value in enumerate(kept))
