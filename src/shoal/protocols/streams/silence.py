"""Trackers that are there and do not answer the Joins of one stream.

One that has not answered for a while is passed over, if another is there. From then on it hears
Leave until it says Left: that costs it nothing, and its Left is the sign that it speaks again. So
all whom it did not answer come back to it at about the same time, and find each other there.

A tracker that says Left and still answers no Join refuses this node, or this stream. It is tried
less and less often: each try is a Join and a Leave, which moves links there if it does take us in.
"""

from __future__ import annotations

import msgspec

from shoal.base.ids import NodeId
from shoal.protocols.streams.config import NodeConfig


class _Silence(msgspec.Struct):
    asked_ns: int | None = None
    """When the first Join was said that has not been answered."""
    passed: bool = False
    """It is not waited for any more."""
    again_ns: int | None = None
    """When it may be joined again; None until it speaks."""
    wait_ns: int | None = None
    """How long it is left alone when it speaks: not at all, the first time."""


class Silences:
    """Which trackers one stream has waited for."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._of: dict[NodeId, _Silence] = {}

    def joined(self, tracker: NodeId, now_ns: int) -> None:
        """A Join was said, perhaps not the first."""
        silence = self._of.setdefault(tracker, _Silence())
        if silence.passed or silence.asked_ns is None:
            silence.asked_ns, silence.passed = now_ns, False

    def answered(self, tracker: NodeId) -> None:
        """It gave an instruction."""
        self._of.pop(tracker, None)

    def is_too_long(self, tracker: NodeId, now_ns: int, *, linked: bool) -> bool:
        """Whether a Join has been waiting for too long; with neighbours, one can wait longer."""
        silence = self._of.get(tracker)
        if silence is None or silence.asked_ns is None:
            return False
        config = self._config
        patience_ns = config.answer_linked_ns if linked else config.answer_ns
        return now_ns - silence.asked_ns >= patience_ns

    def pass_over(self, tracker: NodeId) -> None:
        """Go on without it, until it speaks and some time has passed."""
        silence = self._of.setdefault(tracker, _Silence())
        silence.passed, silence.again_ns = True, None
        if silence.wait_ns is None:
            silence.wait_ns = 0
        else:
            longer_ns = max(self._config.seek_ns, 2 * silence.wait_ns)
            silence.wait_ns = min(longer_ns, self._config.silent_max_ns)

    def spoke(self, tracker: NodeId, now_ns: int) -> None:
        """It said something else than an instruction."""
        if self.awaits_word(tracker):
            silence = self._of[tracker]
            silence.again_ns = now_ns + (silence.wait_ns or 0)

    def awaits_word(self, tracker: NodeId) -> bool:
        """Whether it was passed over, and has said nothing since."""
        silence = self._of.get(tracker)
        return silence is not None and silence.passed and silence.again_ns is None

    def is_passed_over(self, tracker: NodeId, now_ns: int) -> bool:
        """Whether it is not to be joined now."""
        silence = self._of.get(tracker)
        if silence is None or not silence.passed:
            return False
        return silence.again_ns is None or now_ns < silence.again_ns
