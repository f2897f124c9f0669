"""A node whose clock is off publishes nothing, and says why.

Two things tell that it is: the trackers and storage nodes that the network file pins
(`protocols/streams/peer_clocks.py`), and a step of the system clock against the monotonic one that
nobody has confirmed. A step that is undone is forgotten; one that lasts is believed after some
minutes if there is nobody to ask.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from shoal.base.errors import ClockWrong
from shoal.base.units import S_NS
from shoal.node.background import Tasks
from shoal.protocols.streams.peer_clocks import ClocksCompared, CompareClocks, PeerClocks
from shoal.runtime import RuntimeHost
from shoal.storage.message_store.store_disk import StoreDisk

MINUTE_NS = 60 * S_NS
LOOK_S = 1.0  # between two looks at the clock, for readiness and the operator
ANSWER_S = 3.0  # a publisher waits so long for the first answer, or the first after a step
SETTLED_NS = 60 * MINUTE_NS
BELIEVED_NS = 10 * MINUTE_NS
"""A step that nobody can confirm is believed after this: clocks are set right sooner, if at all."""

log = logging.getLogger("shoal.node")


class ClockGuard:
    """Whether this node's time of day can be believed."""

    def __init__(
        self,
        host: RuntimeHost,
        machine: PeerClocks,
        limit_ns: int,
        disk: StoreDisk | None = None,
    ) -> None:
        self.wrong = False
        """Whether pinned nodes say so; a step may be unconfirmed besides."""
        self.ahead_ns: int | None = None
        """By how much our time of day is ahead of theirs, as far as is known now."""
        self._host = host
        self._machine = machine
        self._limit_ns = limit_ns
        self._disk = disk
        self._believed_ns = 0  # how far the time of day is from the monotonic one
        self._compared: ClocksCompared | None = None
        self._compared_ns = 0
        self._heard = asyncio.Event()
        self._said: str | None = None
        self._tasks = Tasks()
        host.listeners.append(self._notified)
        host.check_clock = self.check

    def start(self) -> None:
        """The host runs."""
        self._host.readiness.add("clock", self.problem)
        self._tasks.start(self._watch())

    async def close(self) -> None:
        """Look no more."""
        await self._tasks.close()

    def problem(self) -> str | None:
        """By how much the clock is off, and what to do; None if it may be believed."""
        now_ns, wall = self._host.now_ns(), self._host.wall
        if self._compared is not None and wall.stepped_ns > self._compared_ns:
            self._compared = None
        compared = self._compared
        self.ahead_ns = None if compared is None else compared.ahead_ns
        if self.ahead_ns is not None and compared is not None:
            self.wrong = abs(self.ahead_ns) > self._limit_ns
            if self.wrong:
                return (
                    f"this node's clock is {_off(self.ahead_ns)} {len(compared.answers)} of"
                    f" {compared.asked} trackers and storage nodes that its network file names"
                    f" (the median; the limit is {self._limit_ns / S_NS:g} s): others refuse what"
                    " it publishes. Set the clock, as `timedatectl set-ntp true` does; if theirs"
                    " is wrong, set theirs, or raise clock_limit_s under [node]"
                )
            self._believed_ns = wall.offset_ns
            return None
        self.wrong = False
        step_ns = wall.offset_ns - self._believed_ns
        if abs(step_ns) <= self._limit_ns or wall.is_settled(now_ns, BELIEVED_NS):
            self._believed_ns = wall.offset_ns
            return None
        return (
            f"the system clock was set {'ahead' if step_ns > 0 else 'back'} by"
            f" {abs(step_ns) / S_NS:.1f} s, and no tracker or storage node has confirmed it:"
            f" nothing is published for up to {BELIEVED_NS / MINUTE_NS:g} minutes. Set the clock"
            " right, or see that a tracker of the network file can be reached"
        )

    @property
    def is_settled(self) -> bool:
        """Whether the clock can be believed, and was not set for an hour: what cannot be undone
        waits for that."""
        settled = self._host.wall.is_settled(self._host.now_ns(), SETTLED_NS)
        return settled and self.problem() is None

    async def check(self) -> None:
        """ClockWrong if what is published now would carry a wrong time."""
        problem = self.problem()
        if self.ahead_ns is None and (problem is not None or self._compared is None):
            await self._ask()
            problem = self.problem()
        if problem is not None:
            raise ClockWrong(problem)

    async def _ask(self) -> None:
        """Wait until somebody has answered since the last step, or nobody does."""
        self._compared = None
        try:
            async with asyncio.timeout(ANSWER_S):
                while self._compared is None or not (
                    self._compared.final or self._is_fine(self._compared)
                ):
                    self._heard.clear()
                    self._host.command(self._machine, CompareClocks())
                    await self._heard.wait()
        except TimeoutError:
            pass

    @property
    def _is_blamed(self) -> bool:
        """Whether the last round has found our clock wrong, and it was not set since."""
        compared = self._compared
        if compared is None or self._host.wall.stepped_ns > self._compared_ns:
            return False
        return compared.ahead_ns is not None and not self._is_fine(compared)

    def _is_fine(self, compared: ClocksCompared) -> bool:
        return compared.ahead_ns is not None and abs(compared.ahead_ns) <= self._limit_ns

    def _notified(self, event: Any) -> None:
        if type(event) is not ClocksCompared:
            return
        # Those that blame us are heard to the end; the first that does not will do until then,
        # unless all together have blamed us before: it did not convince them either.
        if event.final or (self._is_fine(event) and not self._is_blamed):
            self._compared, self._compared_ns = event, self._host.now_ns()
        self._heard.set()

    async def _watch(self) -> None:
        while True:
            problem = self.problem()
            if self._disk is not None:
                self._disk.wall_is_wrong = self.wrong
            if self._compared is None and problem is not None:
                self._host.command(self._machine, CompareClocks())
            if (problem is None) != (self._said is None):
                if problem is None:
                    log.info("the clock is right again")
                else:
                    log.error("%s", problem)
                self._said = problem
            await asyncio.sleep(LOOK_S)


def _off(ahead_ns: int) -> str:
    return f"{abs(ahead_ns) / S_NS:.1f} s {'ahead of' if ahead_ns > 0 else 'behind'}"
