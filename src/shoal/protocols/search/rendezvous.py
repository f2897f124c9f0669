"""Where bubbles meet: what this node does with the content of those that reach it.

Questions are answered from what is kept here. Documents are kept, and shown to the standing queries
that were left here. Which meets which is up to their space. Bubbles of spaces that we do not have
are somebody else's: they were forwarded, and that is all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from shoal.base.errors import RemoteError, UsageError
from shoal.base.ids import NodeId
from shoal.kernel.effects import Effect, Send
from shoal.kernel.records import Rejected
from shoal.protocols.search.bubbles.answer_routes import Routes
from shoal.protocols.search.documents.document import Document, read_document
from shoal.protocols.search.documents.document_store import Holdings, Verdict
from shoal.protocols.search.documents.durable_documents import Durable
from shoal.protocols.search.links import Visits
from shoal.protocols.search.messages import BubbleCast, Match
from shoal.protocols.search.payloads import (
    Hit,
    Holding,
    Lookup,
    Put,
    Search,
    Sighting,
    Wanted,
    Watch,
    decode_item,
    decode_payload,
    encode_item,
)
from shoal.protocols.search.signature_checks import Checks
from shoal.protocols.search.signed_records import AddressRecord
from shoal.protocols.search.spaces import Space, Spaces
from shoal.protocols.search.watches.stored_watches import Watches

NO_BUBBLE = bytes(16)  # a sighting answers no bubble: its query says which it is


class Rendezvous:
    """What is kept here, and who is told of it."""

    def __init__(
        self,
        node: NodeId,
        spaces: Spaces,
        holdings: Holdings,
        watches: Watches,
        durable: Durable,
        routes: Routes,
        visits: Visits,
        checks: Checks,
    ) -> None:
        self._node = node
        self._spaces = spaces
        self._holdings = holdings
        self._watches = watches
        self._durable = durable
        self._routes = routes
        self._visits = visits
        self._checks = checks

    def met(self, cast: BubbleCast, id: bytes, peer: NodeId | None, now_ns: int) -> list[Effect]:
        """A bubble has reached us; its header is checked."""
        known = self._spaces.of_kind(cast.kind)
        if known is None:
            return []
        space, type = known
        try:
            payload = decode_payload(type, cast.payload)
        except RemoteError:
            return [Rejected(peer or self._node, "bad-payload")]
        match payload:
            case Search():
                return self._asked(space, id, payload, peer, now_ns)
            case Put(signed):
                return self._given(space, id, signed, peer, now_ns)
            case Watch():
                why_not = self._watches.put(cast.header.origin, payload, now_ns, space.name)
                return [Rejected(peer or self._node, f"watch-{why_not}")] if why_not else []
            case Lookup(documents):
                return self._looked_up(id, documents, now_ns)

    def told(self, items: Sequence[bytes], now_ns: int) -> list[Effect]:
        """Answers to bubbles of ours: who else has a durable document, or a newer version of one
        that we cast."""
        effects: list[Effect] = []
        for raw in items:
            try:
                item = decode_item(raw)
                if isinstance(item, Holding):
                    self._durable.answered(item.id, item.digest, item.node)
                elif isinstance(item, Hit):
                    effects += self._corrected(item.signed, now_ns)
            except RemoteError:
                continue
        return effects

    # Steps

    def _corrected(self, signed: bytes, now_ns: int) -> list[Effect]:
        """If we keep an older version, this one takes its place."""
        document = read_document(signed)
        held = self._holdings.get(document.id, now_ns)
        if held is None or held.rank >= document.rank:
            return []
        return self._given(self._spaces[held.space], NO_BUBBLE, signed, None, now_ns)

    def _asked(
        self, space: Space, id: bytes, asked: Search, peer: NodeId | None, now_ns: int
    ) -> list[Effect]:
        try:
            query = space.read(asked.text)
        except UsageError:
            return [Rejected(peer or self._node, "bad-query")]
        failures = space.failures
        found = self._holdings.search(query, asked.hits, now_ns, space.name)
        items = [encode_item(Hit(document.signed, score)) for document, score in found]
        answer = self._routes.answer(id, items, now_ns) if items else []
        return answer + self._failed(space, failures, peer)

    def _given(
        self, space: Space, id: bytes, signed: bytes, peer: NodeId | None, now_ns: int
    ) -> list[Effect]:
        try:
            document = read_document(signed)
        except RemoteError:
            return [Rejected(peer or self._node, "bad-document")]
        if document.space != space.name:  # nobody who asks for it would come here
            return [Rejected(peer or self._node, "bad-document")]
        checked = partial(self._believed, id, document, peer)
        return self._checks.check(document.owner, signed, checked, now_ns)

    def _believed(
        self, id: bytes, document: Document, peer: NodeId | None, valid: bool, now_ns: int
    ) -> list[Effect]:
        if not valid:
            return [Rejected(peer or self._node, "bad-document")]
        # Our own have a shelf that nobody else fills.
        own = document.owner == self._node
        put = self._holdings.put_own if own else self._holdings.put
        verdict = put(document, now_ns)
        if verdict in (Verdict.EXPIRED, Verdict.LASTING):
            return [Rejected(peer or self._node, f"document-{verdict.value}")]
        if verdict is Verdict.OLDER:
            self._durable.outdated(document.id, now_ns)
            newer = self._holdings.get(document.id, now_ns)
            return [] if newer is None else self._routes.answer(id, [_hit(newer)], now_ns)
        effects: list[Effect] = []
        if verdict is Verdict.FULL:  # standing queries meet it all the same
            effects.append(Rejected(peer or self._node, f"document-{verdict.value}"))
        else:
            self._durable.heard(document, now_ns)
        space = self._spaces[document.space]
        failures = space.failures
        for owner, watch in self._watches.sightings(document, now_ns):
            effects += self._tell(owner, Sighting(watch, document.signed), now_ns)
        return effects + self._failed(space, failures, peer)

    def _failed(self, space: Space, before: int, peer: NodeId | None) -> list[Effect]:
        """A matcher could not take what somebody made up, or is wrong itself."""
        return [Rejected(peer or self._node, "matcher-failed")] if space.failures > before else []

    def _looked_up(self, id: bytes, documents: Sequence[Wanted], now_ns: int) -> list[Effect]:
        items = []
        for wanted in documents:
            held = self._holdings.get(wanted.id, now_ns)
            if held is None or held.rank < (wanted.version, wanted.digest):
                continue
            if held.digest == wanted.digest:
                self._durable.heard(held, now_ns)
                items.append(encode_item(Holding(held.id, held.digest, self._node)))
            else:
                items.append(_hit(held))
        return self._routes.answer(id, items, now_ns) if items else []

    def _tell(self, owner: AddressRecord, sighting: Sighting, now_ns: int) -> list[Effect]:
        """Directly: the bubble of the query has long passed, and its way with it. The address was
        signed by whoever left the query, and its link proves whom we found there."""
        message = Match(NO_BUBBLE, (encode_item(sighting),), False)

        def reached(up: bool, now_ns: int) -> list[Effect]:
            return [Send(message, (owner.node,))] if up else []

        return self._visits.call(owner.contact, reached, now_ns)


def _hit(document: Document) -> bytes:
    return encode_item(Hit(document.signed, 0.0))
