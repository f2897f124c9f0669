"""A link handler that writes down what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from shoal.transport.port import Frame, Link

PATIENCE_S = 20.0  # a test that waits so long has failed; the machine may be busy with others


class Recorder:
    """Remembers everything, in the order in which it was told."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.batches: list[tuple[Link, Sequence[Frame]]] = []
        self.queues: list[bool] = []
        self.rejections: list[str] = []
        self.losses: list[tuple[Link, str]] = []
        self.failures: list[str] = []
        self.story: list[str] = []
        self.keep_payloads = True
        self.bytes_received = 0

    def link_ready(self, link: Link) -> None:
        self.links.append(link)
        self.story.append("ready")

    def frames_received(self, link: Link, frames: Sequence[Frame]) -> None:
        self.bytes_received += sum(len(payload) for _, payload in frames)
        if self.keep_payloads:
            self.batches.append((link, frames))
        self.story.append("frames")

    def send_queue_changed(self, link: Link, *, high: bool) -> None:
        self.queues.append(high)

    def frame_rejected(self, link: Link, reason: str) -> None:
        self.rejections.append(reason)
        self.story.append(f"rejected {reason}")

    def link_lost(self, link: Link, reason: str) -> None:
        self.losses.append((link, reason))
        self.story.append(f"lost {reason}")

    def handshake_failed(self, address: str, reason: str) -> None:
        assert address
        self.failures.append(reason)

    @property
    def frames(self) -> list[Frame]:
        """All frames, of all links."""
        return [frame for _, frames in self.batches for frame in frames]

    def payloads_of(self, link: Link) -> list[bytes]:
        """What came in over one link."""
        return [payload for one, frames in self.batches if one is link for _, payload in frames]

    @property
    def reasons(self) -> list[str]:
        """Why links were lost."""
        return [reason for _, reason in self.losses]


async def until(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Wait for something that the event loop brings about."""
    deadline_s = asyncio.get_running_loop().time() + patience_s
    while not condition():
        if asyncio.get_running_loop().time() > deadline_s:
            raise AssertionError("it did not happen in time")
        await asyncio.sleep(0.001)
