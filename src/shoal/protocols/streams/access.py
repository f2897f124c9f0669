"""What a machine knows of who may do what: verdicts, for as long as they count.

Each machine that asks has a table of its own. One look is one look into a dict; whoever is not in
it is asked for once, however many wait. Without a registry there is no table to look into.
"""

from __future__ import annotations

from shoal.base.ids import NodeId, StreamId
from shoal.kernel.access import Verdict
from shoal.kernel.effects import CheckAccess, Effect
from shoal.kernel.inputs import AccessChanged, AccessChecked
from shoal.kernel.wall import WallClock
from shoal.protocols.streams.config import AccessConfig


class AccessTable:
    """Verdicts by stream and node, the oldest dropped first."""

    __slots__ = ("_asked", "_verdicts", "config", "wall")

    def __init__(self, config: AccessConfig | None = None) -> None:
        self.config = config or AccessConfig()
        self._verdicts: dict[tuple[StreamId, NodeId], Verdict] = {}
        self._asked: dict[tuple[StreamId, NodeId], None] = {}
        self.wall = WallClock()
        """The machine's whose table it is: a verdict says by the time of day when it ends, and is
        kept here by the monotonic time, so that no step makes it last."""

    def look(self, stream: StreamId, who: NodeId, now_ns: int) -> Verdict | None:
        """What counts now; None: ask."""
        verdict = self._verdicts.get((stream, who))
        return verdict if verdict is not None and now_ns < verdict.until_ns else None

    def ask(self, stream: StreamId, who: NodeId) -> list[Effect]:
        """Find out, unless that is under way."""
        if (stream, who) in self._asked:
            return []
        self._asked[stream, who] = None
        return [CheckAccess(stream, who)]

    def checked(self, event: AccessChecked, now_ns: int) -> Verdict:
        """The answer: it counts for what waits for it, also if it is over by now."""
        key, verdict = (event.stream, event.who), event.verdict
        self._asked.pop(key, None)
        self._verdicts.pop(key, None)
        if verdict.problem:
            # Or every message of this publisher would ask a chain that is away.
            verdict = Verdict(0, now_ns + self.config.retry_ns, verdict.problem)
        else:
            until_ns = now_ns + verdict.until_ns - self.wall.read(now_ns)
            verdict = Verdict(verdict.permissions, until_ns)
        self._verdicts[key] = verdict
        if len(self._verdicts) > self.config.verdicts_max:
            del self._verdicts[next(iter(self._verdicts))]
        return verdict

    def changed(self, event: AccessChanged) -> None:
        """Forget what may be different now."""
        if event.stream is not None and event.who is not None:
            self._verdicts.pop((event.stream, event.who), None)
            return
        self._verdicts = {
            (stream, who): verdict
            for (stream, who), verdict in self._verdicts.items()
            if event.stream not in (None, stream) or event.who not in (None, who)
        }

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._verdicts)
