"""The disk port: what drivers do with Store and Load.

A driver gathers what machines ask for while the disk is at work, and hands it over as one batch:
what a disk makes durable it makes durable for the whole batch, so that its cost is shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from shoal.kernel.effects import Load, Store
from shoal.kernel.inputs import Loaded, Stored, StoreFailed

DiskRequest: TypeAlias = tuple[int, Store | Load]  # the machine's slot, and what it asks for
DiskResult: TypeAlias = Stored | StoreFailed | Loaded


class Disk(Protocol):
    """Does what machines of one node ask for. Blocks; not called from two threads at once."""

    def work(self, requests: Sequence[DiskRequest], now_ns: int) -> list[DiskResult]:
        """One result for each request, in their order; what is Stored is durable on return.

        A Load sees every Store before it, and may see later ones of the same batch. Never raises:
        a disk that fails says StoreFailed, and None to a Load. `now_ns` is monotonic; a disk that
        needs the time of day has a `wall`, as machines do.
        """
        ...

    def clear(self) -> None:
        """Forget everything, as a disk that was lost."""
        ...

    def close(self) -> None:
        """Nothing is asked after this."""
        ...


class MemoryDisk:
    """Keys and values, each machine's own: the fake of the port, and the simulator's disk."""

    def __init__(self) -> None:
        self.values: dict[tuple[int, bytes], bytes | None] = {}

    def work(self, requests: Sequence[DiskRequest], now_ns: int) -> list[DiskResult]:
        results: list[DiskResult] = []
        for slot, effect in requests:
            if isinstance(effect, Store):
                self.values[slot, effect.key] = effect.value
                results.append(Stored(effect.token))
            else:
                results.append(Loaded(effect.token, self.values.get((slot, effect.key))))
        return results

    def clear(self) -> None:
        self.values.clear()

    def close(self) -> None:
        pass
