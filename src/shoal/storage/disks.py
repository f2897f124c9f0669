"""Several disks of one node as one: each machine's requests go to its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from shoal.kernel.disk import Disk, DiskRequest, DiskResult
from shoal.kernel.effects import Load, Store
from shoal.kernel.inputs import Loaded, StoreFailed
from shoal.kernel.wall import ReadsWall, WallClock


class DisksBySlot:
    """The disk port over others, by the slot of the machine that asks."""

    def __init__(self, disks: Mapping[int, Disk]) -> None:
        self._of_slot = dict(disks)
        self._disks: tuple[Disk, ...] = tuple({id(disk): disk for disk in disks.values()}.values())
        self.wall = WallClock()
        for disk in self._disks:
            if isinstance(disk, ReadsWall):
                disk.wall = self.wall

    def work(self, requests: Sequence[DiskRequest], now_ns: int) -> list[DiskResult]:
        results = [_no_disk(effect) for _, effect in requests]
        for disk in self._disks:
            mine = [at for at, (slot, _) in enumerate(requests) if self._of_slot.get(slot) is disk]
            if mine:
                done = disk.work([requests[at] for at in mine], now_ns)
                for at, result in zip(mine, done, strict=True):
                    results[at] = result
        return results

    def clear(self) -> None:
        for disk in self._disks:
            disk.clear()

    def close(self) -> None:
        with ExitStack() as stack:  # one that cannot be closed does not keep the others open
            for disk in self._disks:
                stack.callback(disk.close)


def _no_disk(effect: Store | Load) -> DiskResult:
    """What a machine without a disk is told."""
    if isinstance(effect, Store):
        return StoreFailed(effect.token, "no-disk")
    return Loaded(effect.token, None)
