"""What can go wrong with a store as a whole. What a caller can ask wrongly is a UsageError."""

from __future__ import annotations

from shoal.base.errors import RemoteError, ShoalError, UsageError


class StoreError(ShoalError):
    """A store that cannot be used; the message names its folder or file."""


class StoreInUse(StoreError):
    """Another process, or this one, has the store open."""


class StoreGone(StoreError):
    """The store is not where it was: its folder was deleted, or its disk is not mounted."""


class StoreFormatUnknown(StoreError):
    """Not a store, or one that a newer Shoal wrote."""


class StoreDamaged(StoreError):
    """The file does not hold what was written to it."""


class RowDamaged(StoreDamaged):
    """One message of it is not what was written; the others are as good as ever."""


class StoreFull(StoreError):
    """No room on the disk or in the map; nothing of the batch was stored."""


class LogDiverged(RemoteError):
    """A node's log says something else about a seq than it did before: it is not the same log."""


class OutboxFull(StoreError):
    """No room in an outbox now: sealed rows are not yet published, or another batch has the room.
    It is worth trying again."""

    def __init__(self, text: str, *, publishing: bool = False) -> None:
        super().__init__(text)
        self.publishing = publishing
        """Room comes back as sealed rows are published."""


class OutboxTooSmall(StoreError):
    """One batch that is larger than the whole outbox: waiting does not help."""


class Fenced(UsageError):
    """A newer run of the same query has taken over: whoever hears this must stop."""


class NotAReplay(UsageError):
    """A batch was sealed before, and this is not the same batch: the checkpoint was restored, or
    the query gives other rows than it did."""


class MissingBatches(UsageError):
    """An outbox lacks batches that the query has sealed: it was restored from an old copy."""


class NotStaged(UsageError):
    """What is to be sealed was not handed in, or was swept up since: the batch must run again."""
