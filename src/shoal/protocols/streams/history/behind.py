"""Whether a storage node may lack what another one has, and up to when it surely does not.

What was published meanwhile comes with the logs of the others. Until each of them that is there
was gone through once, they serve readers better. That begins anew with every link: which of the two
was away while there was none, or only cut off, nobody can say. Nobody is waited for who cannot be
reached, or gives nothing: a node that is alone answers with what it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from shoal.base.ids import NodeId, StreamId
from shoal.base.units import MS_NS
from shoal.kernel.wall import SLEWED_NS, WallClock
from shoal.protocols.streams.history.config import SyncConfig
from shoal.protocols.streams.history.disk import Compared


class Behind:
    """Streams, and their other storage nodes that were not gone through since we met them."""

    def __init__(self, config: SyncConfig) -> None:
        self._config = config
        self._unmet: dict[StreamId, dict[NodeId, None]] = {}
        self._until_ns: dict[NodeId, int] = {}  # for so long each of them is waited for

    def followed(self, stream: StreamId, node: NodeId, now_ns: int) -> None:
        """Another storage node of a stream is to be gone through; it is there, perhaps."""
        self._unmet.setdefault(stream, {})[node] = None
        self._wait(node, now_ns + self._config.behind_dial_ns)

    def opened(self, node: NodeId, streams: Iterable[StreamId], now_ns: int) -> None:
        """It is there, and may have more of these streams than when it was there last."""
        for stream in streams:
            self._unmet.setdefault(stream, {})[node] = None
        self.moved(node, now_ns)

    def moved(self, node: NodeId, now_ns: int) -> None:
        """Rows of it have come."""
        self._wait(node, now_ns + self._config.behind_ns)

    def lost(self, node: NodeId) -> None:
        """It is not there."""
        self._until_ns[node] = 0

    def met(self, node: NodeId, streams: Iterable[StreamId]) -> None:
        """All that it had of these streams is here."""
        for stream in streams:
            unmet = self._unmet.get(stream, {})
            unmet.pop(node, None)
            if not unmet:
                self._unmet.pop(stream, None)

    def is_behind(self, stream: StreamId, now_ns: int) -> bool:
        """Whether somebody who is there may have more of a stream."""
        return any(self._until_ns[node] > now_ns for node in self._unmet.get(stream, ()))

    def _wait(self, node: NodeId, until_ns: int) -> None:
        self._until_ns[node] = max(until_ns, self._until_ns.get(node, 0))


class _Moment(NamedTuple):
    at_ns: int  # monotonic
    time_ns: int  # the time of day, as the clock said then


class Comparisons:
    """Up to when what other storage nodes have of each stream is here, too.

    Two nodes are compared by the peer's own log, which has every message that the peer holds: once
    our replica of that log reaches as far as the peer said when it was asked, nothing that it had
    at that moment is missing here. So an answer of ours speaks for the peer up to then, also when
    the peer is gone.
    """

    def __init__(self, wall: WallClock) -> None:
        self._wall = wall
        self._moments: dict[NodeId, dict[StreamId, _Moment]] = {}

    def compared(self, node: NodeId, at: Mapping[StreamId, tuple[int, int]]) -> None:
        """Nothing is missing here of what a node had of these streams at these times; and up to
        which time of day, in milliseconds, the node lets us say so."""
        known = self._moments.setdefault(node, {})
        for stream, (moment_ns, until_ms) in at.items():
            before = known.get(stream)
            if before is None or before.at_ns < moment_ns:
                time_ns = min(self._wall.earliest(moment_ns), until_ms * MS_NS)
                known[stream] = _Moment(moment_ns, time_ns)

    def at_ns(self, node: NodeId, stream: StreamId) -> int:
        """When that was last so; 0 if it never was."""
        moment = self._moments.get(node, {}).get(stream)
        return 0 if moment is None else moment.at_ns

    def until_ms(self, node: NodeId, stream: StreamId) -> int:
        """The same as the time of day; 0 if it never was."""
        moment = self._moments.get(node, {}).get(stream)
        return 0 if moment is None else self._time_of(moment) // MS_NS

    def note(self, node: NodeId) -> Compared:
        """What is to be known of a node after a restart."""
        times: dict[int, list[StreamId]] = {}
        for stream, moment in self._moments.get(node, {}).items():
            times.setdefault(self._time_of(moment), []).append(stream)
        return Compared(tuple([(at_ns, tuple(names)) for at_ns, names in times.items()]))

    def noted(self, node: NodeId, note: Compared, now_ns: int) -> None:
        """What was noted before a restart; what is known by now is newer."""
        known = self._moments.setdefault(node, {})
        for time_ns, streams in note.at_ns:
            if time_ns > self._wall.read(now_ns) + SLEWED_NS:
                continue  # by a clock that was wrong: when it was, nobody knows
            at_ns = min(time_ns - self._wall.read(0), now_ns - 1)
            for stream in streams:
                known.setdefault(stream, _Moment(max(1, at_ns), time_ns))

    def _time_of(self, moment: _Moment) -> int:
        """The earlier one of what the clock said then, and of what it says of that moment now: one
        of the two may be wrong, and too early is no lie."""
        return max(0, min(moment.time_ns, self._wall.read(moment.at_ns)))
