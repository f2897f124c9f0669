"""Every bound of a store, with its reason."""

from __future__ import annotations

import msgspec

from shoal.base.errors import UsageError
from shoal.base.units import MIB, S_NS

GIB = 1024 * MIB


class Retention(msgspec.Struct, frozen=True):
    """What a store lets go of. The oldest goes first, by the time it came in."""

    age_ns: int | None = None
    """Messages that came in longer ago than this may go; None keeps them whatever their age."""

    size_bytes_max: int | None = 64 * GIB
    """Above this size the oldest go. Pages in use count, not the file, which never shrinks. The
    default is about 100 million messages of 300 bytes."""

    rows_per_step: int = 512
    """Messages removed in one transaction: appends wait behind it for a few milliseconds."""


class StoreConfig(msgspec.Struct, frozen=True):
    """Settings of a store."""

    retention: Retention = Retention()

    # The file

    map_bytes: int = 256 * MIB
    """Address space taken at first; doubled when it is full. It costs no disk and no memory."""

    map_bytes_max: int = 1024 * GIB
    """The map never grows beyond this: a runaway store must not take all address space."""

    verify_bytes_max: int = 64 * MIB
    """Files up to this size are checked page by page when opened, at about 300 MB/s; larger ones
    only if their length is wrong, or by `verify_pages`."""

    readers_max: int = 126
    """Read transactions at once: one per thread that reads, and lmdb's own default."""

    # What comes in

    batch_rows_max: int = 16_384
    batch_bytes_max: int = 64 * MIB
    """One transaction: lmdb keeps its changed pages in memory, and its list of them is finite."""

    streams_max: int = 100_000
    """Stream ids that a store ever saw: they are never forgotten, for seqs are never reused. As
    many as one tracker has."""

    logs_max: int = 1_000
    """Storage nodes whose logs a store ever held."""

    # What is read

    page_rows_max: int = 1_000
    page_bytes_max: int = 1 * MIB
    """What one read transaction gives out (and at least one message): a few milliseconds. A page
    never ends a read transaction later than that, however slow its reader is."""

    scan_rows_max: int = 20_000
    """Keys that one read transaction looks at to find rows of one publisher: 10 ms."""

    last_rows_max: int = 100_000
    """The n of `last`: their keys are counted from the end before the first is read."""

    claims_max: int = 16_384
    """Ids looked up in one read transaction: 20 ms."""

    # Leases

    lease_ns_max: int = 3_600 * S_NS
    """A reader that died holds retention back no longer than this; a running one renews."""

    leases_max: int = 10_000
    """Readers times partitions; each retention step looks at those of one partition."""

    holder_chars_max: int = 64
    """A lease's holder: the name of a query."""

    def __post_init__(self) -> None:
        """UsageError for bounds that contradict each other."""
        size = self.retention.size_bytes_max
        if size is not None and size > self.map_bytes_max // 4 * 3:
            raise UsageError(
                f"a store of {size} bytes needs a map of a third more, for removing takes room:"
                f" raise map_bytes_max ({self.map_bytes_max}) or lower size_bytes_max"
            )
        if self.retention.rows_per_step < 1:
            raise UsageError("rows_per_step is the work of a step: at least 1")


DEFAULTS = StoreConfig()


class OutboxConfig(msgspec.Struct, frozen=True):
    """Every bound of an outbox, with its reason."""

    size_bytes_max: int = 256 * MIB
    """Rows that are staged or not yet published: beyond it tasks are told to try again."""

    stale_ns: int = 120 * S_NS
    """A part older than this, of which nothing was sent, gets a new time. Nodes refuse what is
    older than 300 s, and a part is under way for seconds."""

    staged_ns: int = 3600 * S_NS
    """A batch of which nothing was staged for so long is of a job that died: some task hands in
    before that, or the job ends."""

    once_ns: int = 24 * 3600 * S_NS
    """A batch write is remembered for so long, for a driver that asks again whether it was sealed.
    Streaming queries are remembered for good: one may come back after months."""

    queries_max: int = 10_000
    runs_max: int = 64
    """Runs of a query that are known to be fenced."""

    shared_part: int = 8
    """One part in so many of the room is for all batches together; the rest is for one of them at a
    time, which can always be completed. Without that, two batches would each hold what the other
    one needs."""

    attempts_max: int = 2
    """Attempts of a task whose rows are held at once: Spark runs two copies of a task at most. The
    largest of them counts against the room, so the disk takes twice the room at most."""

    sweep_max: int = 256
    """Records looked at in one step of sweeping: a few milliseconds."""
