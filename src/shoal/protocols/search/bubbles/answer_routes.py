"""Answers find their way back: each node of a bubble remembers for a while whom it had it from.

An answer goes there, hop by hop; whatever went that way before, or is too much, stays behind. Where
the way is broken, the node before the gap goes to the origin directly. That is the only time that
somebody is dialled for a bubble, once for each bubble and gap: so a bubble whose header names an
address of somebody else does not bring it thousands of visitors. A node that has a link to the
origin anyhow uses that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shoal.base.ids import NodeId
from shoal.kernel.effects import Effect, Send
from shoal.kernel.records import Rejected
from shoal.protocols.search.config import FRAME_BYTES_MAX, MATCH_ITEMS_MAX, SearchConfig
from shoal.protocols.search.links import Visits
from shoal.protocols.search.messages import Match
from shoal.protocols.search.payloads import item_key
from shoal.protocols.search.signed_records import AddressRecord

FRAME_ROOM_BYTES = 4096  # for what is around the items


class _Route:
    __slots__ = ("bytes", "dialled", "expires_ns", "origin", "seen", "upstream")

    def __init__(self, upstream: NodeId | None, origin: AddressRecord, expires_ns: int) -> None:
        self.upstream = upstream
        """None: the bubble is ours."""
        self.origin = origin
        self.expires_ns = expires_ns
        self.seen: dict[bytes, None] = {}
        self.bytes = 0
        """Of what was passed on."""
        self.dialled = False


class Routes:
    """The ways back of bubbles that passed lately."""

    def __init__(
        self,
        is_linked: Callable[[NodeId], bool],
        visits: Visits,
        told: Callable[[bytes, Sequence[bytes], int], list[Effect]],
        config: SearchConfig,
    ) -> None:
        """`is_linked` tells whether a peer can be sent to; `told` takes answers to our own
        bubbles."""
        self._is_linked = is_linked
        self._visits = visits
        self._told = told
        self._config = config
        self._routes: dict[bytes, _Route] = {}
        self._answers = 0
        """That all routes remember."""

    def __len__(self) -> int:
        return len(self._routes)

    def remember(
        self, bubble: bytes, upstream: NodeId | None, origin: AddressRecord, expires_ns: int
    ) -> None:
        """A bubble came from there first; a later slice may have taken another way, and the first
        one will do."""
        known = self._routes.get(bubble)
        if known is not None:
            known.expires_ns = max(known.expires_ns, expires_ns)
            return
        self._routes[bubble] = _Route(upstream, origin, expires_ns)
        if len(self._routes) > self._config.routes_max:
            self.forget(next(iter(self._routes)))

    def forget(self, bubble: bytes) -> None:
        """Nobody waits for answers any more."""
        route = self._routes.pop(bubble, None)
        if route is not None:
            self._answers -= len(route.seen)

    def received(self, peer: NodeId, message: Match, now_ns: int) -> list[Effect]:
        """Answers from further down, or directly to us."""
        if message.bubble not in self._routes:
            return [Rejected(peer, "no-such-bubble")]  # or it is too late
        return self.answer(message.bubble, message.items, now_ns)

    def answer(self, bubble: bytes, items: Sequence[bytes], now_ns: int) -> list[Effect]:
        """Send answers on their way: ours, or those of others."""
        route = self._routes.get(bubble)
        if route is None or now_ns > route.expires_ns:
            return []
        fresh = [item for item in items if self._is_fresh(route, item)]
        while self._answers > self._config.answers_remembered_max:
            self.forget(next(iter(self._routes)))
        if not fresh:
            return []
        if route.upstream is None:
            return self._told(bubble, fresh, now_ns)
        return self._send(bubble, route, fresh, now_ns)

    def unsent(self, peer: NodeId, message: Match, now_ns: int) -> list[Effect]:
        """The link to a peer broke before these answers had left: they take another way, unless
        they were on their last one."""
        route = self._routes.get(message.bubble)
        if route is None or route.upstream is None or route.origin.node == peer:
            return []
        return self._send(message.bubble, route, list(message.items), now_ns)

    def expire(self, now_ns: int) -> None:
        """Forget what nobody answers any more."""
        for bubble in [b for b, route in self._routes.items() if route.expires_ns < now_ns]:
            self.forget(bubble)

    def _is_fresh(self, route: _Route, item: bytes) -> bool:
        """Whether an answer went this way for the first time, and there is room for it."""
        config, about = self._config, item_key(item)
        if about in route.seen or len(route.seen) >= config.answers_max:
            return False
        if route.bytes + len(item) > config.answer_bytes_max:
            return False
        route.seen[about] = None
        route.bytes += len(item)
        self._answers += 1
        return True

    def _send(self, bubble: bytes, route: _Route, items: list[bytes], now_ns: int) -> list[Effect]:
        origin = route.origin.node
        assert route.upstream is not None
        for peer in (origin, route.upstream):
            if self._is_linked(peer):
                return _matches(bubble, items, peer, via=peer != origin)
        if route.dialled and not self._visits.is_waiting(origin):
            return []
        route.dialled = True

        def reached(up: bool, now_ns: int) -> list[Effect]:
            return _matches(bubble, items, origin, via=False) if up else []

        return self._visits.call(route.origin.contact, reached, now_ns)


def _matches(bubble: bytes, items: list[bytes], peer: NodeId, *, via: bool) -> list[Effect]:
    """As few messages as they fit into."""
    effects: list[Effect] = []
    batch: list[bytes] = []
    room = FRAME_BYTES_MAX - FRAME_ROOM_BYTES
    for item in items:
        if len(batch) == MATCH_ITEMS_MAX or len(item) > room:
            effects.append(Send(Match(bubble, tuple(batch), via), (peer,)))
            batch, room = [], FRAME_BYTES_MAX - FRAME_ROOM_BYTES
        batch.append(item)
        room -= len(item)
    if batch:
        effects.append(Send(Match(bubble, tuple(batch), via), (peer,)))
    return effects
