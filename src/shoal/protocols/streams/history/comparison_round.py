"""One pass of anti-entropy over what a peer has; one question is under way at a time.

    heads -> our heads -> for each log we are behind in, in turn:
        rows -> which are lacking? -> messages -> signatures -> Store -> next log

until nothing is left that the heads told of; then the streams are listed that we may not have heard
of. Last, if rows of our own log are damaged, its copy there is asked for them: messages ->
signatures -> Store. The round is the token of its own slow work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from shoal.base.errors import MalformedMessage
from shoal.base.ids import KEYS_PARTITION, StreamId
from shoal.base.units import MS_NS
from shoal.kernel.effects import CancelTimer, Effect, Load, Send, SetTimer, Store, Verify
from shoal.kernel.records import Rejected
from shoal.protocols.streams.history.disk_requests import (
    DIVERGED,
    MALFORMED,
    DamagedRows,
    FindDamaged,
    Lacking,
    Lacks,
    MendKey,
    ReplicaKey,
    decode_answer,
    encode,
)
from shoal.protocols.streams.history.log_entries import Permits, read_kept
from shoal.protocols.streams.history.log_follower import Lie, Page, Tail, page_of
from shoal.protocols.streams.history.messages import (
    NOT_KEPT,
    PAGE_ROWS_MAX,
    AskHeads,
    AskMessages,
    AskRows,
    AskStreams,
    PlaceHeads,
    SyncRefused,
    TellHeads,
    TellMessages,
    TellRows,
    TellStreams,
)
from shoal.protocols.streams.history.replica_set import Followed, Peer

_ANSWER_OF: dict[type, type] = {
    AskHeads: TellHeads,
    AskRows: TellRows,
    AskMessages: TellMessages,
    AskStreams: TellStreams,
}

Spot: TypeAlias = tuple[int, int]  # in a list of streams: which of them, and which partition
Question: TypeAlias = AskHeads | AskRows | AskMessages | AskStreams


class Round:
    """What is under way with one peer, until it is `done`."""

    def __init__(
        self,
        peer: Peer,
        followed: Followed,
        permits: Permits,
        has_damage: Callable[[], bool] = lambda: False,
        streams: tuple[StreamId, ...] | None = None,
        *,
        is_open: bool = False,
        is_wanted: Callable[[], bool] = lambda: False,
    ) -> None:
        """Of all streams of the peer, unless some are named. Open: whoever asks is told.
        `is_wanted` says whether a reader waits for the end of this round."""
        self.peer = peer
        self.full = streams is None
        self.done = False
        self.nothing_kept = False
        """The peer says that it keeps none of what it was asked about."""
        self._told_some = False
        self.replicated = 0
        """Rows that were stored."""
        self.left: dict[StreamId, None] = {}
        """Streams of which something is left for the next round."""
        self.listed: list[StreamId] = []
        """Streams that the peer says it holds."""
        self.tails: deque[Tail] = deque()
        self.page: Page | None = None
        self._followed = followed
        self._permits = permits
        self._config = followed.config
        self._is_open = is_open
        self._is_wanted = is_wanted
        self._copied_some = False
        self.streams = tuple(peer.streams) if streams is None else streams
        # That may be asked for still; a reader waits for no list.
        self._list_pages = followed.config.listed_pages_max if self.full else 0
        self._spot: Spot = (0, 0)  # heads are known of what lies before
        self._asked: Question | None = None
        self._told: TellHeads | None = None
        self._has_damage = has_damage
        self._mending = False  # all else is done
        self._copied: dict[int, Store] = {}
        self._waiting = 0  # checks, or rows, of what mends
        self._forged = False
        self._storing = 0  # the last seq of what is being stored
        self._now_ns = 0
        self._heads_ns = 0  # when heads were last asked for
        # When they were first, of each stream, and up to when the peer lets us speak for it.
        self._since: dict[StreamId, tuple[int, int]] = {}
        self._following: dict[StreamId, int] = {}  # the peer's own logs that we are behind in
        self._short: dict[StreamId, None] = {}

    @property
    def through(self) -> tuple[StreamId, ...]:
        """Streams that the peer has nothing more of, or only what it lies about."""
        return tuple([s for s in self.streams[: self._spot[0]] if s not in self.left])

    @property
    def compared(self) -> dict[StreamId, tuple[int, int]]:
        """Streams of which we have all that the peer had, by the time when it was asked; and up to
        which time of day, in milliseconds, it lets us say so."""
        return {
            stream: self._since[stream]
            for stream in self.streams[: self._spot[0]]
            if stream in self._since
            and stream not in self._short
            and not self._following.get(stream)
        }

    @property
    def rows_behind(self) -> int:
        """Rows of the peer's logs that are not here yet, as far as it has told."""
        tails = list(self.tails) if self.page is None else [*self.tails, self.page.tail]
        return sum(max(0, tail.target - max(tail.held_last, tail.passed_over)) for tail in tails)

    @property
    def is_listing(self) -> bool:
        """All logs were gone through, and only the list of streams is asked for."""
        return isinstance(self._asked, AskStreams)

    def begin(self, now_ns: int) -> list[Effect]:
        """The first question."""
        self._now_ns = now_ns
        return self._next()

    def answered(self, message: Any, now_ns: int) -> list[Effect]:
        """An answer, perhaps to what was asked."""
        self._now_ns = now_ns
        asked = self._asked
        if (
            asked is None
            or message.request != asked.request
            or type(message) not in (_ANSWER_OF[type(asked)], SyncRefused)
        ):
            return [Rejected(self.peer.node, "unasked-answer")]
        self._asked = None
        self.peer.asked_ns, self.peer.silent = 0, False
        effects: list[Effect] = [CancelTimer(("answer", self.peer.node))]
        try:
            match message, asked:
                case TellStreams(), _:
                    effects.extend(self._list(message))
                case TellHeads(), _:
                    effects.extend(self._heads(message))
                case TellRows(), AskRows():
                    effects.extend(self._rows(asked, message))
                case TellMessages(), AskMessages() if self._mending:
                    effects.extend(self._copies(asked, message))
                case TellMessages(), _:
                    effects.extend(self._messages(message))
                case _:
                    effects.extend(self._refused(asked, message.reason, message.until_ms))
        except Lie as lie:
            effects.extend(self._lied(str(lie)))
        return effects

    def loaded(self, value: bytes | None, now_ns: int) -> list[Effect]:
        """Our own disk answers."""
        self._now_ns = now_ns
        answer = None if value is None else decode_answer(value)
        if self._mending and value is not None:
            assert answer is None or isinstance(answer, DamagedRows)  # nothing else was asked
            return self._found_damage(answer)
        try:
            match answer:
                case TellHeads():
                    return self._compare(answer)
                case Lacks():
                    return self._lacks(answer)
        except Lie as lie:
            return self._lied(str(lie))
        self.left.update(dict.fromkeys(self.streams))
        self.done = True  # the disk fails: perhaps not the next time
        return []

    def verified(self, valid: bool, now_ns: int) -> list[Effect]:
        """One of the page's signatures was checked."""
        self._now_ns = now_ns
        if self._mending:
            return self._checked_copy(valid)
        page = self.page
        assert page is not None
        page.unchecked -= 1
        page.forged |= not valid
        if page.unchecked:
            return []
        return self._lied("bad-signature") if page.forged else self._keep()

    def stored(self, now_ns: int) -> list[Effect]:
        """The page is durable."""
        self._now_ns = now_ns
        if self._mending:
            return self._mended()
        page = self.page
        assert page is not None
        tail = page.tail
        self._copied_some = True
        self.replicated += self._storing - max(tail.held_last, page.rows[0].seq - 1)
        tail.held_last, tail.held = self._storing, True
        if tail.held_last < tail.target:
            self.page = None
            self.tails.append(tail)  # the other logs first
        else:
            self._reached(tail)
        return self._next()

    def store_failed(self, reason: str, now_ns: int) -> list[Effect]:
        """The page is not."""
        self._now_ns = now_ns
        if self._mending:
            return [Rejected(self.peer.node, "sync-not-mended"), *self._mended()]
        page = self.page
        assert page is not None
        if reason == MALFORMED:
            return self._lied("no-log")
        if reason == DIVERGED:
            self._followed.diverge(page.tail.key)
        else:
            self.left[page.tail.place[0]] = None
        return [Rejected(self.peer.node, "sync-" + reason), *self._next()]

    # Questions

    def _next(self) -> list[Effect]:
        """Go on with the next log, then with the next streams."""
        if self.page is not None:
            self._followed.logs.pop(self.page.tail.key, None)
            self.page = None
        if self.full and self._copied_some and self._is_wanted():
            self._put_off_copies()
        if self.tails:
            return self._ask(self.tails[0].ask(self.peer.request + 1, self._config.rows_max))
        streams = self._asked_streams()
        peer = self.peer
        if not streams and self._list_pages and (peer.named or not self.nothing_kept):
            return self._ask(AskStreams(peer.request + 1, peer.listing, peer.listed))
        if not streams and self.full and self._has_damage() and not self._mending:
            self._mending = True
            return [Load(encode(FindDamaged()), self)]
        if not streams:
            self.done = True
            return []
        time_ms = max(0, self._followed.wall.earliest(self._now_ns) // MS_NS)
        return self._ask(AskHeads(self.peer.request + 1, streams, self._spot[1], time_ms))

    def _put_off_copies(self) -> None:
        """A reader waits. Logs of others that the peer has copies of go on in the next round: all
        of their messages are in its own log, too."""
        put_off = [tail for tail in self.tails if not tail.owned]
        for tail in put_off:
            self._followed.logs.pop(tail.key, None)
        self.tails = deque([tail for tail in self.tails if tail.owned])

    def _ask(self, question: Question) -> list[Effect]:
        self.peer.request = question.request
        self.peer.asked_ns = self._now_ns
        if isinstance(question, AskHeads):
            self._heads_ns = self._now_ns
        self._asked = question
        node = self.peer.node
        return [
            Send(question, (node,)),
            SetTimer(("answer", node), self._config.answer_timeout_ns),
        ]

    def _asked_streams(self) -> tuple[StreamId, ...]:
        number = self._spot[0]
        return self.streams[number : number + self._config.polled_streams_max]

    # Streams

    def _list(self, told: TellStreams) -> list[Effect]:
        peer = self.peer
        before = peer.listed if told.own == peer.listing else 0
        peer.listing, peer.listed = told.own, told.last
        self.listed.extend(told.streams)
        self._list_pages = self._list_pages - 1 if told.more else 0
        if told.more and told.last <= before:
            self._list_pages = 0  # or it would be asked for the same page without end
            return [Rejected(peer.node, "no-list"), *self._next()]
        return self._next()

    # Heads

    def _heads(self, told: TellHeads) -> list[Effect]:
        peer = self.peer
        effects: list[Effect] = []
        streams = self._asked_streams()
        if not self._followed.claims(peer, told.own, self._now_ns):
            effects.append(Rejected(peer.node, "log-contested"))
            self._short.update(dict.fromkeys(streams))
        self._short.update({streams[at]: None for at in told.untold if at < len(streams)})
        self._told, self._told_some, self.nothing_kept = told, True, False
        question = AskHeads(0, streams, self._spot[1])
        return [*effects, Load(encode(question), self)]

    def _compare(self, held: TellHeads) -> list[Effect]:
        """Their heads and ours, of the same places: what are we behind in?"""
        told, self._told = self._told, None
        assert told is not None
        streams = self._asked_streams()
        spots = {stream: number for number, stream in enumerate(streams)}
        begin, end = (0, self._spot[1]), (len(streams) - 1, KEYS_PARTITION)
        for answer in (told, held):
            if answer.more:
                end = min(end, _end(answer, spots))
        if end < begin:
            raise Lie("no-heads")
        for stream in streams[: end[0] + 1]:
            self._since.setdefault(stream, (self._heads_ns, told.until_ms))
        ours = {(place.stream, place.partition): place for place in held.places}
        effects: list[Effect] = []
        for place in told.places:
            spot = (spots.get(place.stream, len(spots)), place.partition)
            if begin <= spot <= end:
                effects.extend(self._find_tails(place, ours.get(_at(place)), held.own))
        self._count_copies(told, held, spots, begin, end)
        number, partition = end[0] + self._spot[0], end[1] + 1
        self._spot = (number, partition) if partition <= KEYS_PARTITION else (number + 1, 0)
        for stream in streams[: self._spot[0] - number + end[0]]:
            self._followed.copies.done(stream, self.peer.node)
        return [*effects, *self._next()]

    def _count_copies(
        self, told: TellHeads, held: TellHeads, spots: dict[StreamId, int], begin: Spot, end: Spot
    ) -> None:
        """How much of our own log has the peer?"""
        theirs = {_at(place): place for place in told.places}
        for place in held.places:
            spot = (spots.get(place.stream, len(spots)), place.partition)
            own = next((head for head in place.logs if head.log == held.own), None)
            if own is None or not begin <= spot <= end:
                continue
            there = theirs.get(_at(place))
            logs = () if there is None else there.logs
            has = next(((head.first, head.last) for head in logs if head.log == held.own), (1, 0))
            at, peer = _at(place), self.peer.node
            self._followed.copies.compared(at, own.first, own.last, peer, has)

    def _find_tails(self, theirs: PlaceHeads, ours: PlaceHeads | None, own: bytes) -> list[Effect]:
        peer, followed, at = self.peer, self._followed, _at(theirs)
        effects: list[Effect] = []
        lasts = {} if ours is None else {head.log: head.last for head in ours.logs}
        for head in theirs.logs:
            if head.log == own or head.first > head.last:
                continue
            owns, last = head.log == peer.own, lasts.get(head.log)
            if owns and last is not None and head.last < last:
                effects.append(Rejected(peer.node, "log-went-back"))
                self._short[at[0]] = None  # its rows may be others by now
            if head.last <= (last or 0):
                continue
            if owns:
                self._following[at[0]] = self._following.get(at[0], 0) + 1
            if followed.may_follow(peer, (at, head.log), self._now_ns):
                self.tails.append(
                    Tail(
                        place=at,
                        log=head.log,
                        held_last=last or 0,
                        held=last is not None,
                        horizon_ms=0 if ours is None else ours.horizon_ms,
                        target=head.last,
                        may_skip=owns or last is None,
                        owned=owns,
                    )
                )
                followed.logs[at, head.log] = peer
        return effects

    # A page

    def _wall_ns(self) -> int:
        return self._followed.wall.read(self._now_ns)

    def _rows(self, asked: AskRows, told: TellRows) -> list[Effect]:
        tail = self.tails[0]
        before, page = tail.passed_over, page_of(tail, asked, told, self._wall_ns())
        effects: list[Effect] = []
        if tail.due_ns:
            effects.append(Rejected(self.peer.node, "from-the-future"))
            until_ns = self._now_ns + tail.due_ns - self._wall_ns()
            self._followed.rest(self.peer, tail.key, until_ns, self._now_ns, by_wall=True)
        if page is None and before < tail.passed_over < tail.target:
            return self._next()  # all of these are too old: the next page
        if page is None:
            if tail.passed_over >= tail.target:
                self._reached(tail)  # we have let go of all of it ourselves
            return [*effects, *self._drop_tail()]
        self.tails.popleft()
        self.page = page
        return [*effects, Load(encode(Lacking(*page.tail.place, page.rows)), self)]

    def _lacks(self, lacks: Lacks) -> list[Effect]:
        assert self.page is not None
        self.page.lack(lacks.seqs)
        return self._ask(self.page.ask(self.peer.request + 1)) if lacks.seqs else self._keep()

    def _messages(self, told: TellMessages) -> list[Effect]:
        assert self.page is not None
        checks = self.page.take(told, self._permits, self)
        return [*checks] if checks else self._keep()

    def _keep(self) -> list[Effect]:
        """All that could be had of a page is here, and good."""
        page = self.page
        assert page is not None
        change, last = page.change()
        if last <= page.tail.held_last:
            return self._next()  # the peer has let go of it meanwhile: its next heads will say so
        self._storing = last
        key = ReplicaKey(*page.tail.place, page.tail.log)
        return [Store(encode(key), encode(change), self)]

    # Own rows that are damaged: whoever copies our log has them

    def _found_damage(self, found: DamagedRows | None) -> list[Effect]:
        if found is None or found.stream not in self.peer.streams:
            return self._next()
        seqs = found.seqs[:PAGE_ROWS_MAX]
        request = self.peer.request + 1
        return self._ask(AskMessages(request, found.stream, found.partition, found.log, seqs))

    def _copies(self, asked: AskMessages, told: TellMessages) -> list[Effect]:
        """Messages of a copy of our log: signatures to check, then each goes to its row."""
        checks: list[Effect] = []
        for row in told.rows:
            try:
                kept = read_kept(asked.stream, row.signed)
            except MalformedMessage:
                raise Lie("malformed-body") from None
            if row.seq not in asked.seqs or row.seq in self._copied:
                raise Lie("unasked-message")
            if kept.event is not None and not self._permits(kept.event):
                raise Lie("not-allowed")
            key = MendKey(asked.stream, asked.partition, row.seq)
            self._copied[row.seq] = Store(encode(key), row.signed, self)
            checks += [Verify(claim.signer, claim.signed, self) for claim in kept.claims]
        self._waiting = len(checks)
        return checks or self._next()

    def _checked_copy(self, valid: bool) -> list[Effect]:
        self._waiting -= 1
        self._forged |= not valid
        if self._waiting:
            return []
        if self._forged:
            return self._lied("bad-signature")
        self._waiting = len(self._copied)
        return [*self._copied.values()]

    def _mended(self) -> list[Effect]:
        self._waiting -= 1
        return [] if self._waiting else self._next()

    def _reached(self, tail: Tail) -> None:
        """We have all of a log that the peer told of, unless some of it is from the future."""
        if tail.owned and not tail.due_ns:
            self._following[tail.place[0]] -= 1

    # What goes wrong

    def _lied(self, reason: str) -> list[Effect]:
        """Not asked about this log for a while; about others it is."""
        counted = Rejected(self.peer.node, reason)
        tail = self.page.tail if self.page is not None else next(iter(self.tails), None)
        if tail is None:
            self.done = True
            return [counted]
        self._followed.penalise(self.peer, tail.key, self._now_ns)
        return [counted, *(self._drop_tail() if self.page is None else self._next())]

    def _refused(self, asked: Question | None, reason: str, until_ms: int) -> list[Effect]:
        if self._mending:
            return self._next()  # it has no copy of our log, or not of this stream
        if isinstance(asked, AskRows | AskMessages):
            self.left[asked.stream] = None
            return self._next() if isinstance(asked, AskMessages) else self._drop_tail()
        if isinstance(asked, AskStreams):
            self._list_pages = 0
            return self._next()
        if reason == NOT_KEPT:
            self.nothing_kept = not self._told_some
            if self._is_open:  # or it may not want to say what it holds
                for stream in self._asked_streams():
                    self._since.setdefault(stream, (self._heads_ns, until_ms))
            self._spot = (self._spot[0] + len(self._asked_streams()), 0)
            return self._next()
        self.done = True
        return []

    def _drop_tail(self) -> list[Effect]:
        self._followed.logs.pop(self.tails.popleft().key, None)
        return self._next()


def _at(place: PlaceHeads) -> tuple[StreamId, int]:
    return place.stream, place.partition


def _end(answer: TellHeads, spots: dict[StreamId, int]) -> Spot:
    """The last place that an answer with more behind it tells of."""
    if not answer.places or answer.places[-1].stream not in spots:
        raise Lie("no-heads")
    last = answer.places[-1]
    return spots[last.stream], last.partition
