"""The cyclic garbage collector during a run.

An event leaves next to no cycles behind (a thousand objects in 136,000 events, measured with 256
nodes; six thousand where nodes crash), yet the collector keeps looking at everything: with 1,024
nodes that took a tenth to a third of the time. Rare passes over what is new are enough.
"""

from __future__ import annotations

import ctypes
import gc
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

YOUNG_MAX = 500_000  # objects between two passes; as fast as no collector at all, and bounded


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Keep the collector away from what exists, and rare for what comes; then as it was."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


# The memory of a run on large pages.
#
# With a thousand nodes every event is on other pages than the one before, on far more of them than
# the processor remembers the places of, and inside a virtual machine each search for a place is
# two. On pages of two megabytes the same run took 15 % less (1,024 nodes, side by side). Most
# kernels give them only to programs that ask; Python's allocator does not, so it is done for what
# it has taken.
#
# Only Linux knows the request (since 6.1). Where it is refused, the run takes longer and is the
# same.


MADV_COLLAPSE = 25  # "make this large pages now", in asm-generic/mman-common.h
PAGE_BYTES = 2 << 20
GROWN_KIB = 16 << 10  # as much new memory is worth a pass over all of it, a few milliseconds

_MAPS = Path("/proc/self/maps")


class LargePages:
    """Asks for them as a run takes more memory: call it now and then."""

    def __init__(self) -> None:
        self._asked_kib = 0

    def __call__(self) -> None:
        """Ask, if there is much that was not asked for yet."""
        used_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if used_kib - self._asked_kib >= GROWN_KIB and _MAPS.exists():
            self._asked_kib = used_kib
            _ask(_MAPS.read_text())


def heaps(maps: str) -> list[tuple[int, int]]:
    """Where large pages fit into memory that is no file's, as (address, bytes)."""
    found = []
    for line in maps.splitlines():
        where, access, _, _, inode, *name = line.split()
        if access != "rw-p" or inode != "0" or name not in ([], ["[heap]"]):
            continue
        begin, end = (int(address, 16) for address in where.split("-"))
        begin, end = -(-begin // PAGE_BYTES) * PAGE_BYTES, end // PAGE_BYTES * PAGE_BYTES
        if begin < end:
            found.append((begin, end - begin))
    return found


def _ask(maps: str) -> None:
    madvise = ctypes.CDLL(None).madvise
    for address, size_bytes in heaps(maps):
        madvise(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), MADV_COLLAPSE)
