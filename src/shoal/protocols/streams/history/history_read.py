"""A read under way: pages from one storage node after the other, checked, one ahead of its reader.

    FINDING --who keeps it--> ASKING --a page--> CHECKING --all signed--> page told, or held
                                ^  |                 |                     until ReadMore
             retry, after a     |  +-- no answer ----+-- a bad row
             round of failures  +------ next storage node, behind the last good page

A storage node that is away or busy is tried again in the next round; one that sent what it must
not, or says that it does not have it, is not asked again by this read.

A page counts only if it is the answer of all storage nodes: of the one that sent it, of those that
it was compared with late enough, and of those that have said themselves that they hold nothing. If
it is not, the next storage node is asked for the same page. If none has a better one, the page that
speaks for most of them is taken in the end, and the read ends as incomplete: it names those that
may have more, and up to when what they had was read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from shoal.base.ids import Contact, NodeId, StreamId, short_node_id
from shoal.kernel.effects import Effect, SetTimer, Verify
from shoal.kernel.peer_requests import Desk
from shoal.kernel.records import Rejected
from shoal.protocols.streams.commands import (
    BEYOND,
    COMPLETE,
    EXPIRED,
    FAILED,
    INCOMPLETE,
    NO_SUCH_LOG,
    HistoryRow,
    Unheard,
)
from shoal.protocols.streams.config import ClientConfig
from shoal.protocols.streams.history.messages import BEHIND, LogRows, Refused, Rows
from shoal.protocols.streams.history.read_plan import Misfit, Page, Reader

NOT_KEPT = "not-kept"
NOT_HERE = (NOT_KEPT, EXPIRED, NO_SUCH_LOG)  # refusals that asking again does not change
BUSY = "busy"
NO_ANSWER = "no-answer"
NOTHING = "nothing"
UNHEARD = "unheard"  # it does not speak for a storage node that did not answer
NOT_COMPARED = "not-compared"  # it answers, but no answer speaks for it and for all others
DAMAGED = "damaged"  # it cannot read rows of its own
ANOTHER_LOG = "another-log"  # the log that is read is not its own: what is new goes into another
AWAY = "away"  # it did not answer another read a moment ago


def _why_unheard(said: str | None) -> str:
    """It may have answered, and then the answer was not that of all, either."""
    return NOT_COMPARED if said in (None, UNHEARD, BEHIND) else str(said)


class Sink(msgspec.Struct, frozen=True):
    """Where pages go, and what is said at the end."""

    page: Callable[[tuple[HistoryRow, ...]], list[Effect]]
    ended: Callable[[str, str, tuple[Unheard, ...]], list[Effect]]


class _Checking(msgspec.Struct):
    """A page of the first source whose signatures are being checked."""

    page: Page
    asked: int = 0
    answered: int = 0


class Reading:
    """One read and its storage nodes."""

    def __init__(
        self,
        id: int,
        reader: Reader,
        desk: Desk,
        checks: Checks,
        config: ClientConfig,
        sink: Sink,
    ) -> None:
        self.id = id
        self.reader = reader
        self.over = False
        self.useless = False
        """No storage node could be made use of: they may not be the right ones."""
        self.asked: int | None = None
        """The question that has no answer yet."""
        insist = reader.command.insist
        self._rounds = config.fill_rounds if insist else config.rounds
        self._desk = desk
        self._room = checks
        self._config = config
        self._sink = sink
        self._insist = insist  # until something is found
        self._sources: list[Contact] = []  # the first one is asked
        self._set_aside: list[Contact] = []  # asked when nothing else is left
        self._failures = 0  # in a row
        self._said: dict[NodeId, str] = {}  # why each source was of no use
        self._answered = False
        self._nodes: tuple[NodeId, ...] = ()  # all that keep the stream
        self._nothing: dict[NodeId, None] = {}  # these have said that they hold nothing of it
        self._silent: dict[NodeId, int] = {}  # how many questions each source has not answered
        self._lacks: dict[NodeId, int] = {}  # for how many others each source did not speak
        self._unheard: dict[NodeId, int] = {}  # up to when pages that were taken speak for these
        self._checking: _Checking | None = None
        self._held: tuple[HistoryRow, ...] = ()
        self._wanted = True
        self._last = False
        self._checks = 0  # pages, to tell their checks apart

    @property
    def stream(self) -> StreamId:
        return self.reader.command.stream

    # What the reader wants

    def more(self) -> list[Effect]:
        """There is room for a page."""
        self._wanted = True
        return self._move() if self._held else []

    # Storage nodes

    def found(self, contacts: Sequence[Contact], away: Sequence[NodeId] = ()) -> list[Effect]:
        """These keep the stream; some of them were away a moment ago, and are not asked unless all
        of them were."""
        self._nodes = tuple([contact.node for contact in contacts])
        here = [contact for contact in contacts if contact.node not in away]
        self._sources = here or list(contacts)
        self._set_aside = [c for c in contacts if c.node in away] if here else []
        self._said = {node: AWAY for node in away if here and node in self._nodes}
        return self._ask()

    def not_found(self, reason: str, problem: str) -> list[Effect]:
        """Nobody keeps it, or nobody knows who does."""
        return self._end(reason, problem)

    def answered(self, peer: NodeId, answer: Any) -> list[Effect]:
        """The storage node that was asked said something."""
        self.asked = None
        if isinstance(answer, Refused):
            if answer.reason == NOT_KEPT:
                self._nothing[peer] = None
            return self._failed(answer.reason, for_good=answer.reason in NOT_HERE)
        try:
            if not isinstance(answer, Rows | LogRows):
                raise Misfit("another-answer")
            page = self.reader.check(answer, peer)
        except Misfit as misfit:
            reason = str(misfit)
            if reason == BEHIND:
                return self._failed(reason)
            return self._lied(reason)
        self._checking = _Checking(page)
        self._checks += 1
        return self._check()

    def failed(self, reason: str) -> list[Effect]:
        """It did not answer."""
        self.asked = None
        if reason == NO_ANSWER:
            node = self._sources[0].node
            self._silent[node] = self._silent.get(node, 0) + 1
        return self._failed(reason)

    def retry(self) -> list[Effect]:
        """The pause between two rounds is over."""
        return self._ask()

    # Signatures

    def verified(self, token: tuple[int, int, int], valid: bool) -> list[Effect]:
        """The result of a check."""
        checking = self._checking
        if checking is None or token[1] != self._checks:
            return []  # of a page that was given up
        checking.answered += 1
        if not valid:
            self._checking = None
            return self._lied("bad-signature")
        return self._check() if checking.answered == checking.asked else []

    def check_more(self) -> list[Effect]:
        """There is room for more checks."""
        if self._checking is None:
            self._room.forget(self.id)  # of a page that was given up
            return []
        return self._check()

    def _check(self) -> list[Effect]:
        checking = self._checking
        assert checking is not None  # all callers have one
        rows = checking.page.rows
        if checking.answered == len(rows):
            return self._take(checking.page)
        begin = checking.asked
        checking.asked += self._room.take(self.id, len(rows) - begin)
        effects: list[Effect] = []
        for index in range(begin, checking.asked):
            row, token = rows[index], (self.id, self._checks, index)
            effects.append(Verify(row.body.id.publisher, row.signed, token))
        return effects

    # Steps

    def _take(self, page: Page) -> list[Effect]:
        self._checking = None
        source = self._sources[0].node
        # It may know of others than the tracker did when it was asked.
        nodes = dict.fromkeys([*self._nodes, *(heard.node for heard in page.heard)])
        # One that does not even speak for itself names itself among the others.
        for_itself = all(heard.node != source for heard in page.heard)
        lacking = [
            node
            for node in nodes
            if not (node == source and for_itself)
            and node not in self._nothing
            and page.lacks(node)
        ]
        if for_itself and page.last and not (page.rows or page.damaged or self.reader.begun):
            self._nothing[source] = None
        if not lacking and not page.of_source:
            lacking = [source]
        if lacking and self.reader.whole:
            self._lacks[source] = len(lacking)
            return self._failed(UNHEARD)
        if page.damaged:
            self._unheard[source], self._said[source] = 0, DAMAGED
        elif lacking == [source]:
            self._said[source] = ANOTHER_LOG
        for node in lacking:
            until_ms = page.until_ms(node)
            self._unheard[node] = min(until_ms, self._unheard.get(node, until_ms))
        self._failures = 0
        self._answered = True
        self.reader.took(page, source)
        self._last = page.last
        self._held = tuple([row.checked() for row in page.rows])
        if self._insist and page.last and not self._held:
            return self._failed(NOTHING, for_good=True)
        return self._move()

    def _move(self) -> list[Effect]:
        """After a page came, or room for one: tell it, and ask for the next."""
        effects: list[Effect] = []
        if self._held and self._wanted:
            held, self._held, self._wanted = self._held, (), False
            self._insist = False  # there is something
            effects.extend(self._sink.page(held))
            if self.over:
                return effects
        if self._held:
            return effects
        return effects + (self._end_whole() if self._last else self._ask())

    def _ask(self) -> list[Effect]:
        request, source = self._desk.next_request(), self._sources[0]
        self.asked = request
        whole = self.reader.whole or self._said.get(source.node) == UNHEARD
        question = self.reader.question(request, source.node, whole)
        return self._desk.ask(request, self.id, source, question)

    def _lied(self, reason: str) -> list[Effect]:
        """The first source sent what cannot be: count it, and ask another."""
        liar = self._sources[0].node
        self.reader.distrust(liar)
        return [Rejected(liar, f"history-{reason}"), *self._failed(reason, for_good=True)]

    def _failed(self, reason: str, *, for_good: bool = False) -> list[Effect]:
        """The first source was of no use: the next one's turn."""
        said = self._said.get(self._sources[0].node)
        if reason == BEHIND and said == UNHEARD and not self.reader.whole:
            self._said[self._sources[0].node] = BEHIND
            return self._ask()  # it could not compare this time: take what it has
        source = self._sources.pop(0)
        self._said[source.node] = reason
        if self._insist:
            self.reader.restart()  # where one has nothing, the next may have something
        if for_good:
            return self._ask() if self._sources else self._give_up()
        self._sources.append(source)
        self._failures += 1
        if self._failures >= self._rounds * len(self._sources):
            return self._settle()
        if self._failures % len(self._sources) == 0:
            if self._is_no_better():
                return self._settle()
            return [SetTimer(("retry", self.id), self._config.retry_ns)]
        return self._ask()

    def _settle(self) -> list[Effect]:
        """No answer is the answer of all: what those have who may lack some is better than
        nothing."""
        words = (UNHEARD, BEHIND)
        behind = [source for source in self._sources if self._said.get(source.node) in words]
        if not behind or not self.reader.settle():
            return self._give_up()

        def rank(source: Contact) -> tuple[int, int]:
            return words.index(self._said[source.node]), self._lacks.get(source.node, 0)

        self._sources = sorted(behind, key=rank)
        self._failures = (self._rounds - 1) * len(behind)  # one round more
        return self._ask()

    def _is_no_better(self) -> bool:
        """Whether all storage nodes that answer may lack some, and none will have it soon. One that
        has left a question unanswered is asked a second time: the question may have been lost with
        a link that was being closed."""
        said = [self._said.get(source.node) for source in self._sources]
        once = [self._silent.get(source.node) == 1 for source in self._sources]
        return (
            UNHEARD in said and not any(word in (BEHIND, BUSY) for word in said) and not any(once)
        )

    def _give_up(self) -> list[Effect]:
        if self._set_aside:
            self._sources, self._set_aside = self._set_aside, []
            self._failures = 0
            return self._ask()
        said = list(self._said.values())
        if self._insist and self._answered and NOTHING in said:
            return self._end_whole()
        reason = FAILED
        ends_at = self.reader.log_ends_at
        if ends_at is not None and all(word in (BEHIND, NOT_KEPT, NO_SUCH_LOG) for word in said):
            return self._end(BEYOND, f"the log of this offset ends at {ends_at:,}")
        if all(word in NOT_HERE for word in said):  # or one that is away may still have it
            reason = next((word for word in (EXPIRED, NO_SUCH_LOG) if word in said), FAILED)
        self.useless = reason == FAILED
        each = ", ".join(f"{short_node_id(node)}: {word}" for node, word in self._said.items())
        return self._end(reason, each)

    def _end_whole(self) -> list[Effect]:
        """All that was to be had was told: is it all that there is?"""
        unheard = [
            Unheard(node, until_ms, _why_unheard(self._said.get(node)))
            for node, until_ms in self._unheard.items()
            if node not in self._nothing
        ]
        if not unheard:
            return self._end(COMPLETE, "")
        each = ", ".join(f"{short_node_id(one.node)}: {one.reason}" for one in unheard)
        return self._end(INCOMPLETE, each, tuple(unheard))

    def _end(self, reason: str, problem: str, unheard: tuple[Unheard, ...] = ()) -> list[Effect]:
        self.over = True
        return self._sink.ended(reason, problem, unheard)


# Signatures of history under way at once, of all reads of a node.
#
# Live messages are checked by the same cores: they must wait behind a few checks of history,
# however many reads there are. So a read asks for room here; when there is none, it has its turn
# later, one read after the other.


class Checks:
    """Room for so many checks."""

    def __init__(self, at_once: int) -> None:
        self.free = at_once
        self._waiting: dict[int, None] = {}  # reads, first come first

    def take(self, read: int, wanted: int) -> int:
        """How many checks a read may begin now; if none, it waits."""
        first = next(iter(self._waiting), read)
        granted = min(wanted, self.free) if first == read else 0
        self._waiting.pop(read, None)
        if wanted and not granted:
            self._waiting[read] = None
        self.free -= granted
        return granted

    def ended(self) -> None:
        """One check is done."""
        self.free += 1

    def turn(self) -> int | None:
        """The read whose turn it is, if there is room and one waits."""
        return next(iter(self._waiting), None) if self.free else None

    def forget(self, read: int) -> None:
        """A read is over; what it has under way still ends."""
        self._waiting.pop(read, None)
