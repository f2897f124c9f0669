"""Two connections to one peer, until one of them is left.

Two nodes that dial each other at once get two. Both keep the one that the smaller id dialled; the
other is the spare. What is said to a peer arrives in the order in which it was said, whichever
connection it takes: a node goes on with the one that it had first, and these words, which are
payloads of a protocol of their own, take it over to the kept one:

    BOTH   on the kept one: I have both
    LAST   on the spare, once the peer has said BOTH: my last word here
    NEXT   on the kept one, at that moment: what follows was said after my last word there

Before its BOTH a peer may not know the kept one, and may never come to know it. Whoever reads NEXT
before LAST reads on there when LAST has come, or the spare is gone. A spare on which both sides
have said LAST is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from functools import partial

import msgspec

from shoal.base.ids import NodeId
from shoal.transport.port import Link

NUMBER = 255  # of the protocol

BOTH = b"2"
LAST = b"."
NEXT = b">"
WORDS = (BOTH, LAST, NEXT)


class Pair(msgspec.Struct, eq=False):
    """Two connections to one peer."""

    kept: Link
    spare: Link
    paused: Container[NodeId]
    """Peers of whom nothing is to be read."""
    moved: bool = False
    """We have said LAST: all that we say goes over the kept one."""
    ended: bool = False
    """The peer has said LAST."""
    held: list[Callable[[], None]] | None = None
    """What came over the kept one behind NEXT, and before LAST; bounded, for it is not read."""

    def other(self, link: Link) -> Link:
        """The one that is not this one."""
        return self.spare if link is self.kept else self.kept

    def release(self) -> None:
        """All that was said before is here, or will never be: read on."""
        held, self.held = self.held, None
        for tell in held or ():
            tell()
        if self.kept.peer.node not in self.paused:
            self.kept.resume_reading()
            self.spare.resume_reading()  # if it is the one that is left, of a pause that is over


class Pairs:
    """The peers to whom there are two."""

    def __init__(self, use: Callable[[Link], None], paused: Container[NodeId]) -> None:
        """`use` has all that is said from now on go over a connection. Nothing is to be read of
        those who are paused, over neither of the two."""
        self._use = use
        self._paused = paused
        self._pairs: dict[NodeId, Pair] = {}

    def __contains__(self, link: Link) -> bool:
        return self._of(link) is not None

    def join(self, kept: Link, spare: Link) -> None:
        """There are two now."""
        peer = kept.peer.node
        self._pairs[peer] = Pair(kept, spare, self._paused)
        for link in (kept, spare) if peer in self._paused else ():
            link.pause_reading()
        kept.send(NUMBER, BOTH)

    def readable(self, link: Link) -> tuple[Link, ...]:
        """This one, or both, but for one that has to wait for the other's last word."""
        pair = self._of(link)
        if pair is None:
            return (link,)
        return (pair.kept, pair.spare) if pair.held is None else (pair.spare,)

    def part(self, peer: NodeId) -> Pair | None:
        """There is one, or none: the pair that was, for its release."""
        return self._pairs.pop(peer, None)

    def part_all(self) -> list[NodeId]:
        """The peers to whom there were two."""
        peers = list(self._pairs)
        self._pairs.clear()
        return peers

    def heard(self, link: Link, word: bytes) -> bool:
        """The peer said a word; whether what it says after it has to wait."""
        pair = self._of(link)
        if pair is None:
            return False  # of a pair that is no more
        if word == NEXT and link is pair.kept and not pair.ended:
            pair.held = []
            link.pause_reading()
            return True
        # LAST says as much as BOTH, which may have come before we had both.
        ended = word == LAST and link is pair.spare
        if not pair.moved and (ended or (word == BOTH and link is pair.kept)):
            pair.moved = True
            pair.spare.send(NUMBER, LAST)
            pair.kept.send(NUMBER, NEXT)
            self._use(pair.kept)
        if ended:
            pair.ended = True
            pair.release()
        if pair.moved and pair.ended and self._of(link) is pair:
            del self._pairs[link.peer.node]
            pair.spare.close("duplicate")
        return False

    def hold(self, link: Link, tell: Callable[[], None]) -> bool:
        """Whether something has to wait, and will be told."""
        pair = self._of(link) if self._pairs else None
        if pair is None or pair.held is None or link is not pair.kept:
            return False
        pair.held.append(tell)
        return True

    def _of(self, link: Link) -> Pair | None:
        pair = self._pairs.get(link.peer.node)
        return pair if pair is not None and (link is pair.kept or link is pair.spare) else None


async def closed(link: Link) -> None:
    """Close a connection; done when the peer has read all of it, or had its time."""
    over = asyncio.get_running_loop().create_future()
    link.close("closed", partial(over.set_result, None))
    await over
