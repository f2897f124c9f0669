"""A node's link to one tracker: kept as long as there is something to say.

A link that breaks is dialled again once, soon: a restart, or a broken connection, is no death. If
that fails, `Trackers` decides what becomes of the streams. Leaves are said until a Left comes, but
nobody is dialled for them again: a tracker that lost us counts us out by itself.
"""

from __future__ import annotations

from random import Random

from shoal.base.ids import Contact, NodeId, StreamId
from shoal.kernel.effects import CancelTimer, CloseLink, Effect, OpenLink, Send, SetTimer
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.messages import Leave

TRACKER = ""  # the purpose of the tracker link; streams claim links under their id, never empty


class TrackerLink:
    """Whether a tracker is there, which streams are with it, and which it must hear are not."""

    def __init__(self, tracker: Contact, rng: Random, config: NodeConfig) -> None:
        self.contact = tracker
        self.up = False
        self.claimed = False
        self.pausing = False
        """It was there a moment ago, and is dialled again when the dial timer fires."""
        self.streams: dict[StreamId, bool] = {}
        """Streams that are with it or moving to it; True once a Join was said."""
        self.leaving: dict[StreamId, None] = {}
        """Left, but the tracker has not said so."""
        self._rng = rng
        self._config = config
        self._failed_ns: int | None = None
        self._waiting = False  # the patience timer runs

    @property
    def node(self) -> NodeId:
        return self.contact.node

    def failed(self, now_ns: int) -> bool:
        """It could not be reached lately; older news are no news."""
        since_ns = self._failed_ns
        return since_ns is not None and now_ns - since_ns < 2 * self._config.seek_ns

    def claim(self) -> list[Effect]:
        """Have the link, or wait for it."""
        if self.up or self.pausing or self._waiting:
            return []
        self._waiting = True
        patience = SetTimer(("patience", self.node), self._config.tracker_patience_ns)
        if self.claimed:
            return [patience]  # a dial that was given up goes on, and is waited for once more
        self.claimed = True
        return [OpenLink(self.contact, TRACKER), patience]

    def opened(self) -> list[Effect]:
        """The link is up."""
        self.up = True
        self._waiting = False
        self._failed_ns = None
        return [CancelTimer(("patience", self.node))]

    def lost(self, now_ns: int) -> list[Effect]:
        """The link broke, or could not be made."""
        was_up = self.up
        self.claimed = self.up = self._waiting = False
        effects: list[Effect] = [CancelTimer(("patience", self.node))]
        if was_up and (self.streams or self.leaving):
            self.pausing = True
            least_ns = self._config.redial_ns
            wait_ns = least_ns + self._rng.randrange(least_ns)  # a thousand others come back too
            return [*effects, SetTimer(("dial", self.node), wait_ns)]
        if not was_up:
            self._failed_ns = now_ns
        return effects

    def redial(self) -> list[Effect]:
        """The pause is over."""
        self.pausing = False
        return self.claim() if self.streams or self.leaving else []

    def give_up(self, now_ns: int) -> bool:
        """Whether the dial under way takes too long to be waited for; it goes on."""
        self._waiting = False
        if self.up or not self.claimed:
            return False
        self._failed_ns = now_ns
        return True

    def part(self, stream: StreamId) -> None:
        """A stream is not here any more; said when the link is up, if there was ever a Join."""
        if self.streams.pop(stream, False):
            self.leaving[stream] = None
        if len(self.leaving) > self._config.leaving_max:
            del self.leaving[next(iter(self.leaving))]  # the tracker will miss us, and notice

    def leave(self, stream: StreamId, after_ns: int = 0) -> list[Effect]:
        """Be out of a stream: say so until it is heard."""
        self.part(stream)
        if stream not in self.leaving:
            return self.let_go()
        if after_ns:
            return [SetTimer(("leave", stream, self.node), after_ns)]
        return self.say_leave(stream)

    def say_leave(self, stream: StreamId) -> list[Effect]:
        """Say once more that we are out of a stream, if that has not been heard."""
        if stream not in self.leaving or not self.up:
            return []
        timer = SetTimer(("leave", stream, self.node), self._config.join_retry_ns)
        return [Send(Leave(stream), (self.node,)), timer]

    def left(self, stream: StreamId) -> list[Effect]:
        """The tracker knows that we are out of a stream."""
        self.leaving.pop(stream, None)
        return [CancelTimer(("leave", stream, self.node)), *self.let_go()]

    def end(self) -> list[Effect]:
        """It is no tracker of ours any more: say goodbye once, and hang up."""
        effects: list[Effect] = [CancelTimer((name, self.node)) for name in ("patience", "dial")]
        for stream in self.leaving:
            effects.append(CancelTimer(("leave", stream, self.node)))
            if self.up:
                effects.append(Send(Leave(stream), (self.node,)))
        if self.claimed:
            effects.append(CloseLink(self.node, TRACKER))
        return effects

    def let_go(self) -> list[Effect]:
        """With nothing left to say, hang up."""
        if self.streams or self.leaving or not self.claimed:
            return []
        self.claimed = self.up = self._waiting = False
        return [CancelTimer(("patience", self.node)), CloseLink(self.node, TRACKER)]
