"""How many leases each client has: one that takes them all would leave none for others.

Counted since the start of the gateway: what a client took before lasts for an hour at most.
"""

from __future__ import annotations

from shoal.base.errors import UsageError
from shoal.base.ids import StreamId
from shoal.storage.rows import LogId

LEASES_MAX = 1_000
"""Of one client, of the 10,000 of a store: ten queries over a stream with 100 partitions."""

LeaseKey = tuple[str, LogId, StreamId, int]
"""Holder, log, stream, partition."""


class ClientLeases:
    """Leases by the key or address of who took them; as many as a store has at most."""

    def __init__(self, most: int = LEASES_MAX) -> None:
        self._most = most
        self._expiry_ns: dict[str, dict[LeaseKey, int]] = {}
        self._checks = 0

    def __len__(self) -> int:
        """How many are counted."""
        return sum(map(len, self._expiry_ns.values()))

    def check(self, client: str, key: LeaseKey, now_ns: int) -> None:
        """UsageError if this client has its share, and would take one more."""
        self._checks += 1
        if self._checks >= self._most:  # clients that never come back would be counted for ever
            self._checks = 0
            self._forget_expired(now_ns)
        own = self._expiry_ns.get(client, {})
        if key in own or len(own) < self._most:
            return
        for lease in [lease for lease, expires_ns in own.items() if expires_ns <= now_ns]:
            del own[lease]
        if len(own) >= self._most:
            raise UsageError(
                f"{client} has {len(own)} leases here, and no client gets more: release those that"
                " are not needed (DELETE log/lease), or let them expire"
            )

    def _forget_expired(self, now_ns: int) -> None:
        for client, own in list(self._expiry_ns.items()):
            held = {key: expires_ns for key, expires_ns in own.items() if expires_ns > now_ns}
            if held:
                self._expiry_ns[client] = held
            else:
                del self._expiry_ns[client]

    def taken(self, client: str, key: LeaseKey, expires_ns: int) -> None:
        """The store has given it a lease."""
        self._expiry_ns.setdefault(client, {})[key] = expires_ns

    def released(self, key: LeaseKey) -> None:
        """A lease was given back, by whomever."""
        for client, own in list(self._expiry_ns.items()):
            own.pop(key, None)
            if not own:
                del self._expiry_ns[client]
