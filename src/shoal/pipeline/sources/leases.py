"""A running query keeps retention from taking what it has not read yet.

A lease is on every server that takes it, for each log and partition that the query is at. It is
renewed from a thread of its own, for a query may be busy, or wait for its trigger, for longer than
a lease lasts; a query that died holds retention back for a quarter of an hour. Leases lag behind
the query by up to one renewal, on the side that keeps more; a log or partition that is new to the
query is leased at once.
"""

from __future__ import annotations

import threading
from uuid import UUID, uuid4

from shoal.base.offsets import Offset
from shoal.pipeline.sources.client import LogServers
from shoal.pipeline.sources.options import SourceOptions

LEASE_S = 900
RENEW_S = 300.0
END_S = 5.0  # what giving leases back may take


class LeaseKeeper:
    """The leases of one running query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._holder = f"spark-{uuid4().hex}"
        self._offset = Offset()
        self._taken: set[tuple[UUID, int]] = set()
        self._wanted: set[tuple[UUID, int]] = set()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, offset: Offset) -> None:
        """What comes after this is still needed."""
        self._offset = offset
        wanted = {(at.log, partition) for partition, at in offset.partitions.items()}
        if not wanted <= self._wanted:
            self._wake.set()
        self._wanted = wanted
        if self._thread is None and offset.partitions and not self._stopped.is_set():
            self._thread = threading.Thread(target=self._renew, name="shoal-leases", daemon=True)
            self._thread.start()

    def release(self) -> None:
        """The query has ended."""
        self._stopped.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(END_S)

    def _renew(self) -> None:
        options = self._options
        servers = LogServers(options, patience_s=0.0)
        while not self._stopped.is_set():
            self._wake.clear()
            for partition, at in self._offset.partitions.items():
                take(servers, self._holder, partition, at.log, at.seq, LEASE_S)
                self._taken.add((at.log, partition))
            if not self._stopped.is_set():
                self._wake.wait(RENEW_S)
        for log, partition in self._taken:
            servers.everywhere(
                "DELETE", "/lease", partition=partition, log=log, holder=self._holder
            )
        servers.close()


def take(
    servers: LogServers, holder: str, partition: int, log: UUID, after: int, seconds: int
) -> None:
    """Take or renew a lease on what comes after a seq. A server that cannot is passed over: it may
    be away, and a read without a lease is still a read."""
    words = {"partition": partition, "log": log, "after": after}
    servers.everywhere("PUT", "/lease", **words, holder=holder, seconds=seconds)
