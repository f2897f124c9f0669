"""Which neighbours send us the messages of a chain, and which only tell us their names.

Flooding brings every message d - 1 times, and all but the first copy are waste. Which link is first
differs from publisher to publisher, but hardly from message to message. So a link that was late a
few times in a row is asked to hold a chain's messages back (Feed) and to announce each by its
name instead (Announce), which is much smaller. What remains is a tree for every chain, made
of the fastest links, and beside it a net of announcements that knows of every message.

Nothing depends on the tree alone. Whoever is told a name that it lacks asks for the message (Want),
and has it a round trip later; that link feeds the chain again from then on. So do all others once a
gap is seen, or a feed is lost. If too many feed a chain then, the late ones are held back anew, and
sooner: a link that only chance made early costs two copies.

A new link feeds everything. Both ends forget what they agreed on when a link ends. A Feed or a Want
that is lost costs one more late copy, or is made good by the next announcement or the repair.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shoal.base.ids import NodeId, StreamId
from shoal.base.units import S_NS
from shoal.kernel.effects import Effect, Send
from shoal.kernel.records import Rejected
from shoal.protocols.streams.config import HEADS_MAX
from shoal.protocols.streams.messages import Feed
from shoal.protocols.streams.signed_message import Chain, Number

LATE_IN_A_ROW = 4  # fewer may be chance
ON_TRIAL = 2  # what a link that was asked back counts as late already
IGNORED = 256  # late copies in a row that no chain has under way: we were not heard, or not heeded
ANSWER_NS = 5 * S_NS  # what was announced and asked for has come by then
UNANSWERED_MAX = 3  # or it was lost on its way, but not so often
CHAINS_MAX = 4096  # whose links are told apart: the oldest go back to flooding
COUNTED_MAX = 32  # messages of a chain whose copies are counted: later ones are late indeed


class _Arrivals(msgspec.Struct):
    """How the messages of one chain reach us."""

    own: bool
    """We publish it: no copy is of any use."""
    late: dict[NodeId, int] = {}
    """Of each neighbour that brought copies, how often in a row we had it from enough others.
    Whoever has reached LATE_IN_A_ROW was asked for names only."""
    copies: dict[Number, int] | None = None
    """How many came of each of the last, if one is not enough."""
    asked: dict[NodeId, tuple[int, int]] | None = None
    """How often a neighbour was asked for what it had announced, and when first, while nothing came
    from it since."""

    def held_back(self) -> tuple[NodeId, ...]:
        """Who was asked for names only."""
        return tuple([peer for peer, late in self.late.items() if late >= LATE_IN_A_ROW])


class Feeds:
    """The feeds of one stream, to us and from us."""

    __slots__ = ("_chains", "_redundant", "_stream", "_wishes", "names_only", "watched")

    def __init__(self, stream: StreamId, redundant: int | None = None) -> None:
        """Redundant is how many more than one are kept for each chain; None: all there are."""
        self.watched = redundant is not None
        """Whether it matters to us who is late; others may want names only all the same."""
        self._stream = stream
        self._redundant = redundant or 0
        self._chains: dict[Chain, _Arrivals] = {}
        self._wishes: dict[NodeId, dict[Chain, None]] = {}  # the same as names_only, by neighbour
        self.names_only: dict[Chain, frozenset[NodeId]] = {}
        """Neighbours that want to be told the names of a chain's messages, not the messages."""

    # What comes

    def own(self, chain: Chain) -> list[Effect]:
        """We publish a message."""
        return [] if chain in self._chains else self._add(chain, _Arrivals(True))

    def first(self, chain: Chain, number: Number, peer: NodeId) -> list[Effect]:
        """The first copy of a message came from a neighbour."""
        arrivals = self._chains.get(chain)
        if arrivals is None:
            copies = {number: 1} if self._redundant else None
            return self._add(chain, _Arrivals(False, {peer: 0}, copies))
        if arrivals.copies is not None:
            arrivals.copies[number] = 1
            if len(arrivals.copies) > COUNTED_MAX:
                del arrivals.copies[next(iter(arrivals.copies))]
        _answered(arrivals, peer)
        late = arrivals.late.get(peer, 0)
        arrivals.late[peer] = 0
        if late < LATE_IN_A_ROW:
            return []
        return [Send(Feed(self._stream, (chain,), True), (peer,))]  # it is late no more

    def again(self, chain: Chain, number: Number, peer: NodeId) -> list[Effect]:
        """Another copy came."""
        arrivals = self._chains.get(chain)
        if arrivals is None:
            return []
        _answered(arrivals, peer)
        late, copies = arrivals.late.get(peer, 0), arrivals.copies
        if copies is not None and number in copies:
            copies[number] += 1
            if copies[number] <= 1 + self._redundant and late < LATE_IN_A_ROW:
                arrivals.late[peer] = 0
                return []
        late += 1
        arrivals.late[peer] = late
        if late < LATE_IN_A_ROW or late & (late - 1):
            return []  # some more are under way when it is asked: it is told again at 8, 16, ...
        hold_back = Send(Feed(self._stream, (chain,), False), (peer,))
        return [hold_back, Rejected(peer, "not-held-back")] if late >= IGNORED else [hold_back]

    def resume(self, chain: Chain) -> list[Effect]:
        """Something of a chain is missing: let everybody feed it."""
        arrivals = self._chains.get(chain)
        peers = () if arrivals is None else arrivals.held_back()
        if arrivals is None or not peers:
            return []
        for peer in peers:
            arrivals.late[peer] = ON_TRIAL
        return [Send(Feed(self._stream, (chain,), True), peers)]

    def wanted(self, chain: Chain, peer: NodeId, now_ns: int) -> list[Effect]:
        """A neighbour announced what we lack: it is asked for it, and so for all that follows."""
        arrivals = self._chains.get(chain)
        if arrivals is None:
            # It may have come to know us before we started anew: what it has is asked for anyway.
            return [Rejected(peer, "unasked-announce")]
        if arrivals.late.get(peer, 0) >= LATE_IN_A_ROW:
            arrivals.late[peer] = ON_TRIAL
        if arrivals.asked is None:
            arrivals.asked = {}
        times, since_ns = arrivals.asked.get(peer, (0, now_ns))
        if times < UNANSWERED_MAX or now_ns - since_ns < ANSWER_NS:
            arrivals.asked[peer] = (times + 1, since_ns)
            return []
        arrivals.asked[peer] = (1, now_ns)
        return [Rejected(peer, "announced-not-sent")]

    def lost(self, peers: Iterable[NodeId]) -> list[Effect]:
        """Neighbours are gone: what came from them must come from others."""
        effects: list[Effect] = []
        for peer in peers:
            orphans: dict[NodeId, list[Chain]] = {}
            for chain, arrivals in self._chains.items():
                _answered(arrivals, peer)
                # Whoever brought nothing has it from us, or is held back.
                if arrivals.late.pop(peer, LATE_IN_A_ROW) >= LATE_IN_A_ROW or arrivals.own:
                    continue
                for other in arrivals.held_back():
                    arrivals.late[other] = ON_TRIAL
                    orphans.setdefault(other, []).append(chain)
            for chain in self._wishes.pop(peer, ()):
                self._set_names_only(chain, self.names_only[chain] - {peer})
            for other, chains in orphans.items():
                for start in range(0, len(chains), HEADS_MAX):
                    some = tuple(chains[start : start + HEADS_MAX])
                    effects.append(Send(Feed(self._stream, some, True), (other,)))
        return effects

    # What goes

    def told(self, peer: NodeId, chains: Iterable[Chain], *, wanted: bool) -> None:
        """A neighbour says how it wants to get some chains."""
        wishes = self._wishes.setdefault(peer, {})
        for chain in chains:
            if wanted and chain in wishes:
                self._forget(peer, chain)
            elif not wanted and chain not in wishes:
                wishes[chain] = None
                self.names_only[chain] = self.names_only.get(chain, frozenset()) | {peer}
                if len(wishes) > CHAINS_MAX:
                    self._forget(peer, next(iter(wishes)))

    def _forget(self, peer: NodeId, chain: Chain) -> None:
        del self._wishes[peer][chain]
        self._set_names_only(chain, self.names_only[chain] - {peer})

    def _set_names_only(self, chain: Chain, peers: frozenset[NodeId]) -> None:
        if peers:
            self.names_only[chain] = peers
        else:
            del self.names_only[chain]

    def _add(self, chain: Chain, arrivals: _Arrivals) -> list[Effect]:
        self._chains[chain] = arrivals
        if len(self._chains) <= CHAINS_MAX:
            return []
        oldest = next(iter(self._chains))
        effects = self.resume(oldest)
        del self._chains[oldest]
        return effects


def _answered(arrivals: _Arrivals, peer: NodeId) -> None:
    if arrivals.asked is not None:
        arrivals.asked.pop(peer, None)
        arrivals.asked = arrivals.asked or None
