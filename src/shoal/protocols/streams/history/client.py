"""The history machine of a node: reads what storage nodes keep, and has messages kept.

Theory of operation. A read (`reading.py`), a message to be kept (`keeping.py`), a gap to be filled
(`fill.py`) and an absence to be made up for (`catch_up.py`; both are reads too) are jobs. A job
first needs the storage nodes of its stream, which a tracker names, or the settings of this node if
that is silent (`finder.py`). Then it asks them,
through the desk (`desk.py`), which sees to links, order and time-outs. A job survives every storage
node but the last: whatever one of them does, the next one is asked for what is still missing.
Nothing here grows with how long a history is: of each read at most one page is told and one is
held. Signatures of all reads together are checked a few at a time (`checks.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import msgspec

from shoal.base.errors import InvariantViolated, UsageError
from shoal.base.ids import KEYS_PARTITION, Contact, NodeId, StreamId
from shoal.kernel.effects import CancelTimer, Effect, Notify, SetTimer
from shoal.kernel.inputs import (
    CommandIssued,
    Input,
    LinkClosed,
    LinkFailed,
    LinkOpened,
    MessageReceived,
    TimerFired,
    Verified,
)
from shoal.kernel.peer_requests import Desk, DeskLimits, Question
from shoal.kernel.records import Rejected
from shoal.protocols.streams.commands import (
    NO_STORAGE,
    NO_TRACKER,
    CatchUp,
    CountDurable,
    FillFromStorage,
    HistoryEnded,
    HistoryPage,
    HistoryRow,
    KeepDurably,
    LastMessages,
    ReadHistory,
    ReadMore,
    StopReading,
    Unheard,
)
from shoal.protocols.streams.config import ClientConfig
from shoal.protocols.streams.history.catch_up import CatchUps, Fills, PartitionsOf
from shoal.protocols.streams.history.durable_write import Counting, Keeping
from shoal.protocols.streams.history.history_read import Checks, Reading, Sink
from shoal.protocols.streams.history.messages import ANSWERS
from shoal.protocols.streams.history.read_plan import Reader
from shoal.protocols.streams.messages import FindStorage, StorageNodes

PURPOSE = "history"  # of the claims on links
LAST_MAX = 100_000  # as in messages.py: more than this is a range

Job = Reading | Keeping | Counting


class HistoryClient:
    """One node's reader of history."""

    accepts = (*ANSWERS, StorageNodes, FillFromStorage, CatchUp)

    def __init__(
        self,
        node: NodeId,
        trackers_of: TrackersOf,
        config: ClientConfig | None = None,
        partitions_of: PartitionsOf = lambda stream: 1,
        named: Callable[[StreamId], tuple[Contact, ...]] = lambda stream: (),
    ) -> None:
        """Trackers_of names the trackers of a stream, in the order in which to ask them; `named`
        its storage nodes, as far as the settings of this node have any."""
        self.node = node
        self.config = config or ClientConfig()
        waits = self.config
        limits = DeskLimits(
            waits.answer_ns, waits.answer_ns, waits.idle_ns, waits.questions_per_peer_max
        )
        self._desk = Desk(PURPOSE, limits)
        self._checks = Checks(self.config.checks_at_once)
        self._finder = Finder(node, trackers_of, self._desk, self.config, named)
        self._fills = Fills(node, self.config, self._begin_fill, self._stop_own)
        self._catch_ups = CatchUps(
            node, self.config, partitions_of, self._begin_catch_up, self._more, self._stop_own
        )
        self._jobs: dict[int, Job] = {}
        self._finding: dict[StreamId, list[int]] = {}  # jobs that wait to be told who keeps it
        self._reads: dict[Hashable, int] = {}
        self._own_reads: dict[FillFromStorage | StreamId, int] = {}  # of gaps, and of absences
        self._away: dict[NodeId, int] = {}  # until when these storage nodes are not asked
        self._keeps = 0
        self._next_id = 0
        self._now_ns = 0

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        """The one entry point."""
        self._now_ns = now_ns
        match event:
            case MessageReceived(peer, message):
                return self._received(peer, message)
            case Verified(token, valid):
                return self._verified(token, valid)
            case CommandIssued(command, token):
                return self._command(command, token)
            case LinkOpened(peer):
                return self._desk.opened(peer)
            case LinkClosed(peer):  # it may have been quiet for long: it can be dialled again
                questions, effects = self._desk.lost(peer)
                return effects + self._unanswered(questions, event.reason, away=False)
            case LinkFailed(peer):
                questions, effects = self._desk.lost(peer)
                return effects + self._unanswered(questions, event.reason)
            case TimerFired(key):
                return self._timer(key)
        return []

    def check_invariants(self) -> None:
        """Raise InvariantViolated on impossible state."""
        reads = {*self._reads.values(), *self._own_reads.values()}
        if len(self._jobs) != len(reads) + self._keeps:
            raise InvariantViolated(f"{len(self._jobs)} jobs: {len(reads)} reads, {self._keeps}")
        if any(job.over for job in self._jobs.values()):
            raise InvariantViolated("a job that is over is still there")

    # Inputs

    def _received(self, peer: NodeId, message: Any) -> list[Effect]:
        if isinstance(message, FillFromStorage | CatchUp):
            if peer != self.node:  # of this node's stream machine, and of nobody else's
                return [Rejected(peer, "not-mine")]
            if isinstance(message, CatchUp):
                return self._catch_ups.ask(message)
            return self._fills.ask(message)
        found = isinstance(message, StorageNodes)
        key = find_key(message.stream) if found else message.request
        question, effects = self._desk.settle(peer, key)
        if question is None:
            return [Rejected(peer, "unasked-history")]  # late, or from somebody else
        self._away.pop(peer, None)
        if found:
            contacts = self._finder.answered(peer, message, self._now_ns)
            return effects + self._found(message.stream, contacts)
        job = self._jobs.get(question.owner)
        if job is None:
            return effects  # stopped meanwhile
        return effects + self._done(job, job.answered(peer, message))

    def _verified(self, token: Any, valid: bool) -> list[Effect]:
        self._checks.ended()
        effects: list[Effect] = []
        while (turn := self._checks.turn()) is not None:
            waiting = self._jobs[turn]
            assert isinstance(waiting, Reading)  # and under way: others are forgotten
            effects += waiting.check_more()
        job = self._jobs.get(token[0])
        if isinstance(job, Reading):
            effects += self._done(job, job.verified(token, valid))
        return effects

    def _timer(self, key: Any) -> list[Effect]:
        name, what = key
        match name:
            case "ask":
                questions, effects = self._desk.timed_out(what)
                return effects + self._unanswered(questions, "no-answer")
            case "dial":
                questions, effects = self._desk.give_up_dialling(what)
                return effects + self._unanswered(questions, "no-link")
            case "idle":
                return self._desk.give_back(what)
            case "catch-up":
                return self._catch_ups.ask_again(what)
            case "named":
                return self._go_by_names(what) if what in self._finding else []
        job = self._jobs.get(what)  # "retry"
        return [] if job is None else self._done(job, job.retry())

    def _command(self, command: Any, token: Hashable) -> list[Effect]:
        match command:
            case ReadHistory():
                return self._read(command, token)
            case ReadMore():
                job = self._jobs.get(self._reads.get(token, 0))
                return self._done(job, job.more()) if isinstance(job, Reading) else []
            case StopReading():
                return self._stop(self._reads.pop(token, None))
            case KeepDurably():
                return self._keep(command, token)
            case CountDurable():
                self._admit_keep()
                return self._begin(Counting(self._new_id(), command, token, self._desk))
        raise UsageError(f"{command!r} is no command of a history machine")

    # Jobs

    def _read(self, command: ReadHistory, token: Hashable) -> list[Effect]:
        if token in self._reads:
            raise UsageError(f"a read with token {token!r} is under way: stop it first")
        if len(self._reads) >= self.config.reads_max:
            raise UsageError(f"{len(self._reads)} reads at once: end one before the next")
        if not 0 <= command.partition <= KEYS_PARTITION:
            raise UsageError(f"partition {command.partition}: choose one of 0..{KEYS_PARTITION}")
        what = command.what
        if isinstance(what, LastMessages) and not 1 <= what.count <= LAST_MAX:
            raise UsageError(
                f"the last {what.count} messages: give 1 to {LAST_MAX}, or a time to begin at"
            )

        def page(rows: tuple[HistoryRow, ...]) -> list[Effect]:
            return [Notify(HistoryPage(token, rows))]

        def ended(reason: str, problem: str, unheard: tuple[Unheard, ...]) -> list[Effect]:
            del self._reads[token]
            return [Notify(HistoryEnded(token, reason, problem, unheard))]

        id = self._reads[token] = self._new_id()
        reader = Reader(command, self.config, self.config.page_rows)
        return self._begin(
            Reading(id, reader, self._desk, self._checks, self.config, Sink(page, ended))
        )

    def _begin_fill(self, gap: FillFromStorage, command: ReadHistory, sink: Sink) -> list[Effect]:
        return self._begin_own(gap, command, sink)

    def _begin_catch_up(self, stream: StreamId, command: ReadHistory, sink: Sink) -> list[Effect]:
        return self._begin_own(stream, command, sink)

    def _begin_own(
        self, key: FillFromStorage | StreamId, command: ReadHistory, sink: Sink
    ) -> list[Effect]:
        def ended(reason: str, problem: str, unheard: tuple[Unheard, ...]) -> list[Effect]:
            del self._own_reads[key]
            return sink.ended(reason, problem, unheard)

        id = self._own_reads[key] = self._new_id()
        reader, ends = Reader(command, self.config, self.config.page_rows), Sink(sink.page, ended)
        return self._begin(Reading(id, reader, self._desk, self._checks, self.config, ends))

    def _more(self, stream: StreamId) -> list[Effect]:
        job = self._jobs.get(self._own_reads[stream])
        return job.more() if isinstance(job, Reading) else []

    def _stop_own(self, key: FillFromStorage | StreamId) -> list[Effect]:
        return self._stop(self._own_reads.pop(key))

    def _stop(self, id: int | None) -> list[Effect]:
        job = self._jobs.pop(id, None) if id is not None else None
        if not isinstance(job, Reading):
            return []
        job.over = True
        self._checks.forget(job.id)
        if job.asked is not None:
            self._desk.drop(job.asked)
        return [CancelTimer(("retry", job.id))]

    def _keep(self, command: KeepDurably, token: Hashable) -> list[Effect]:
        if command.copies < 1:
            raise UsageError(f"{command.copies} copies: give 1 or more")
        self._admit_keep()
        return self._begin(Keeping(self._new_id(), command, token, self._desk, self.config))

    def _admit_keep(self) -> None:
        if self._keeps >= self.config.keeps_max:
            raise UsageError(f"{self._keeps} messages wait to be kept: wait for some of them")
        self._keeps += 1

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _begin(self, job: Job) -> list[Effect]:
        self._jobs[job.id] = job
        contacts = self._finder.known(job.stream, self._now_ns)
        if contacts is not None:
            return self._tell(job, contacts)
        stream = job.stream
        if not self._finder.waits(stream) and self._finder.is_named(stream):
            asked = self._finder.find(stream) or []  # it may be back
            return [*asked, *self._tell(job, self._finder.named(stream, self._now_ns))]
        self._finding.setdefault(stream, []).append(job.id)
        effects = self._finder.find(stream)
        if effects is None:
            return self._not_found(stream)
        if self._finder.is_named(stream) and len(self._finding[stream]) == 1:
            effects.append(SetTimer(("named", stream), self.config.named_after_ns))
        return effects

    def _go_by_names(self, stream: StreamId) -> list[Effect]:
        """The tracker is silent: those serve whom the settings name."""
        return self._found(stream, self._finder.named(stream, self._now_ns))

    def _found(self, stream: StreamId, contacts: tuple[Contact, ...]) -> list[Effect]:
        effects: list[Effect] = []
        for id in self._finding.pop(stream, ()):
            job = self._jobs.get(id)
            if job is not None:
                effects.extend(self._tell(job, contacts))
        return effects

    def _not_found(self, stream: StreamId) -> list[Effect]:
        effects: list[Effect] = []
        if stream in self._finding and self._finder.is_named(stream):
            return self._go_by_names(stream)
        for id in self._finding.pop(stream, ()):
            job = self._jobs.get(id)
            if job is not None:
                problem = "no tracker says who keeps it"
                effects.extend(self._done(job, job.not_found(NO_TRACKER, problem)))
        return effects

    def _tell(self, job: Job, contacts: tuple[Contact, ...]) -> list[Effect]:
        if isinstance(job, Reading) and contacts:
            away = [node for node, until_ns in self._away.items() if until_ns > self._now_ns]
            return self._done(job, job.found(contacts, away))
        if contacts:
            return self._done(job, job.found(contacts))
        return self._done(job, job.not_found(NO_STORAGE, "no storage node is named for it"))

    def _unanswered(
        self, questions: list[Question], reason: str, *, away: bool = True
    ) -> list[Effect]:
        effects: list[Effect] = []
        for question in questions:
            if isinstance(question.owner, tuple):
                stream = question.owner[1]
                asked = self._finder.failed(stream)
                effects.extend(self._not_found(stream) if asked is None else asked)
                continue
            job = self._jobs.get(question.owner)
            if away:
                self._gone(question.peer)
            if isinstance(job, Reading):
                effects.extend(self._done(job, job.failed(reason)))
            elif job is not None:
                effects.extend(self._done(job, job.failed(question.peer, reason)))
        return effects

    def _gone(self, peer: NodeId) -> None:
        self._away.pop(peer, None)
        self._away[peer] = self._now_ns + self.config.away_ns
        if len(self._away) > self.config.streams_max:
            del self._away[next(iter(self._away))]

    def _done(self, job: Job, effects: list[Effect]) -> list[Effect]:
        """After any step of a job: is it over?"""
        if job.over and self._jobs.pop(job.id, None) is not None:
            if isinstance(job, Reading):
                self._checks.forget(job.id)
                if job.useless:
                    self._finder.forget(job.stream)  # they may have moved
            else:
                self._keeps -= 1
            return [*effects, CancelTimer(("retry", job.id))]
        return effects


# Who keeps a stream: asked of its trackers, one after the other, and remembered for a while.
#
# The settings of this node may name the storage nodes as well. A tracker knows them better: its own
# settings are the owner's, and members tell it where they are reached. But one that is silent must
# not stop those who know it all the same: after a second they go by their settings, at once for the
# other streams of that tracker, and it is asked again now and then.


ROUNDS = 2  # every tracker is asked so often: a link may break under a question

TrackersOf = Callable[[StreamId], tuple[Contact, ...]]
FindKey = tuple[str, StreamId]


def find_key(stream: StreamId) -> FindKey:
    """What the answer to a FindStorage is known by; its owner too."""
    return ("find", stream)


class _Found(msgspec.Struct, frozen=True):
    contacts: tuple[Contact, ...]
    until_ns: int


class Finder:
    """The storage nodes of streams."""

    def __init__(
        self,
        node: NodeId,
        trackers_of: TrackersOf,
        desk: Desk,
        config: ClientConfig,
        named: Callable[[StreamId], tuple[Contact, ...]],
    ) -> None:
        """`named` gives those that the settings name for a stream."""
        self._node = node
        self._trackers_of = trackers_of
        self._desk = desk
        self._config = config
        self._found: dict[StreamId, _Found] = {}
        self._named = named
        self._silent: dict[NodeId, None] = {}  # trackers that were not waited for any longer
        self._asking: dict[StreamId, list[Contact]] = {}  # trackers not asked yet

    def known(self, stream: StreamId, now_ns: int) -> tuple[Contact, ...] | None:
        """The storage nodes, if they are known."""
        found = self._found.get(stream)
        return None if found is None or found.until_ns <= now_ns else found.contacts

    def find(self, stream: StreamId) -> list[Effect] | None:
        """Ask for them, unless that is under way; None if there is nobody to ask."""
        if stream in self._asking:
            return []
        self._asking[stream] = list(self._trackers_of(stream)) * ROUNDS
        return self._ask_next(stream)

    def named(self, stream: StreamId, now_ns: int) -> tuple[Contact, ...]:
        """The storage nodes as the settings have them, instead of a tracker that does not answer;
        none, if they name none."""
        contacts = self._in_turn(self._named(stream))
        if contacts:
            self._silent.update(dict.fromkeys(self._first(stream)))
            self._remember(stream, contacts, now_ns + self._config.named_ns)
        return contacts

    def waits(self, stream: StreamId) -> bool:
        """Whether the tracker of a stream is to be waited for; else ask, and go by the settings."""
        return not any(tracker in self._silent for tracker in self._first(stream))

    def is_named(self, stream: StreamId) -> bool:
        """Whether the settings name storage nodes of a stream."""
        return bool(self._named(stream))

    def failed(self, stream: StreamId) -> list[Effect] | None:
        """A tracker did not answer: ask the next; None after the last."""
        return self._ask_next(stream)

    def answered(self, tracker: NodeId, nodes: StorageNodes, now_ns: int) -> tuple[Contact, ...]:
        """A tracker said who. If it knows of nobody, and the settings do, those are asked: what is
        to be kept must not pass for what nobody keeps."""
        self._asking.pop(nodes.stream, None)
        self._silent.pop(tracker, None)
        contacts = self._in_turn(nodes.contacts or self._named(nodes.stream))
        good_ns = self._config.found_ns if contacts else self._config.not_kept_ns
        self._remember(nodes.stream, contacts, now_ns + good_ns)
        return contacts

    def forget(self, stream: StreamId) -> None:
        """They were of no use: ask anew the next time."""
        self._found.pop(stream, None)

    def _first(self, stream: StreamId) -> tuple[NodeId, ...]:
        """The tracker that a stream goes to, if there is one."""
        return tuple([contact.node for contact in self._trackers_of(stream)[:1]])

    def _remember(self, stream: StreamId, contacts: tuple[Contact, ...], until_ns: int) -> None:
        self._found.pop(stream, None)
        self._found[stream] = _Found(contacts, until_ns)
        if len(self._found) > self._config.streams_max:
            del self._found[next(iter(self._found))]

    def _ask_next(self, stream: StreamId) -> list[Effect] | None:
        left = self._asking[stream]
        if not left:
            del self._asking[stream]
            return None
        key = find_key(stream)
        return self._desk.ask(key, key, left.pop(0), FindStorage(stream))

    def _in_turn(self, contacts: tuple[Contact, ...]) -> tuple[Contact, ...]:
        """Ourselves first, if we are one; else each reader begins at another one, so that not all
        of them ask the first."""
        unique = {contact.node: contact for contact in contacts}
        ordered = list(unique.values())
        if not ordered:
            return ()
        own = unique.get(self._node)
        at = ordered.index(own) if own is not None else sum(self._node) % len(ordered)
        return (*ordered[at:], *ordered[:at])
