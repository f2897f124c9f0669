"""A node's link to its tracker: kept as long as there is something to say.

Joins are said again until an instruction comes, leaves until a Left comes. When the link breaks,
the overlay stays as it is; the node comes back with a backoff and says everything anew.
"""

from __future__ import annotations

from random import Random

from shoal.base.ids import NodeId, StreamId
from shoal.kernel.contact import Contact
from shoal.kernel.effects import CancelTimer, CloseLink, Effect, OpenLink, Send, SetTimer
from shoal.protocols.streams.config import DEGREE_MAX, NodeConfig
from shoal.protocols.streams.messages import Join, Leave
from shoal.protocols.streams.overlay import Overlay

TRACKER = ""  # the purpose of the tracker link; streams claim links under their id, never empty


class TrackerLink:
    """Says Join and Leave, and sees to it that they are heard."""

    def __init__(self, tracker: Contact, rng: Random, config: NodeConfig) -> None:
        self.contact = tracker
        self.own = Contact(tracker.node)
        """How this node is reached; set when it starts."""
        self._rng = rng
        self._config = config
        self._claimed = False
        self._up = False
        self._pausing = False  # until the dial timer fires
        self._backoff_ns = config.tracker_backoff_min_ns
        self._leaving: dict[StreamId, None] = {}  # left, but the tracker has not said so

    @property
    def node(self) -> NodeId:
        return self.contact.node

    # What is to be said

    def join(self, overlay: Overlay) -> list[Effect]:
        """Take part in a stream: say so now, or when the link is up."""
        self._leaving.pop(overlay.stream, None)
        if not self._up:
            return [] if self._pausing else self._claim()
        neighbours = tuple(overlay.active())[:DEGREE_MAX]
        join = Join(overlay.stream, self.own, overlay.epoch, overlay.counter, neighbours)
        timer = SetTimer(("join", overlay.stream), self._config.join_retry_ns)
        return [Send(join, (self.node,)), timer]

    def leave(self, stream: StreamId) -> list[Effect]:
        """Be out of a stream: say so until it is heard."""
        self._leaving[stream] = None
        if len(self._leaving) > self._config.leaving_max:
            del self._leaving[next(iter(self._leaving))]  # the tracker will miss us, and notice
        return [CancelTimer(("join", stream)), *self.say_leave(stream)]

    def say_leave(self, stream: StreamId) -> list[Effect]:
        """Say once more that we are out of a stream, if that has not been heard."""
        if stream not in self._leaving or not self._up:
            return []
        timer = SetTimer(("leave", stream), self._config.join_retry_ns)
        return [Send(Leave(stream), (self.node,)), timer]

    def left(self, stream: StreamId, *, idle: bool) -> list[Effect]:
        """The tracker knows that we are out of a stream; with nothing left to say, hang up."""
        self._leaving.pop(stream, None)
        effects: list[Effect] = [CancelTimer(("leave", stream))]
        if idle and not self._leaving and self._claimed:
            self._claimed = self._up = False
            effects.append(CloseLink(self.node, TRACKER))
        return effects

    # The link

    def opened(self) -> list[Effect]:
        """The link is up: say what waited. Joins are the caller's to say."""
        self._up = True
        self._backoff_ns = self._config.tracker_backoff_min_ns
        effects: list[Effect] = []
        for stream in self._leaving:
            effects.extend(self.say_leave(stream))
        return effects

    def lost(self, *, idle: bool) -> list[Effect]:
        """The link broke, or could not be made: try again, later each time."""
        self._claimed = self._up = False
        if idle and not self._leaving:
            return []
        self._pausing = True
        wait_ns = self._backoff_ns + self._rng.randrange(self._backoff_ns)
        self._backoff_ns = min(2 * self._backoff_ns, self._config.tracker_backoff_max_ns)
        return [SetTimer("dial", wait_ns)]

    def dial(self, *, idle: bool) -> list[Effect]:
        """The pause is over."""
        self._pausing = False
        return [] if idle and not self._leaving else self._claim()

    def _claim(self) -> list[Effect]:
        if self._claimed:
            return []
        self._claimed = True
        return [OpenLink(self.contact, TRACKER)]
