"""Three storage nodes that are killed, frozen, cut off, emptied and replaced, whose clocks are set,
whose rows are damaged, that go on under a new log, or come back and serve nothing, while readers
read.

Publishers have every message kept by one storage node, and no message travels by an overlay: so a
message is on one disk alone until the storage nodes have compared. Some are handed in long after
their timestamps. Safety: an answer that claims to be complete has every message that was
acknowledged before its question was asked. Liveness: a minute after the last fault every answer
claims to be complete, and every message is acknowledged.

A store is taken away only while each acknowledged message is on another disk, too; what may be lost
before that is no matter of reading.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import msgspec

from shoal.base.ids import Contact, MessageId, NodeId, StreamId
from shoal.base.units import MS_NS, S_NS
from shoal.identity import PrivateKey, SeededEntropy
from shoal.identity.message_body import Body, Position, decode_body, encode_body
from shoal.kernel.machine import Machine
from shoal.protocols.streams.commands import (
    HistoryEnded,
    HistoryPage,
    KeepDurably,
    KeepFailed,
    KeptDurably,
    LastMessages,
    LogRange,
    MessageRange,
    ReadHistory,
    ReadMore,
    What,
)
from shoal.protocols.streams.config import LATE_MS
from shoal.protocols.streams.history.anti_entropy import FollowStream, StorageSync
from shoal.protocols.streams.history.client import HistoryClient
from shoal.protocols.streams.history.read_plan import cursor_of
from shoal.protocols.streams.history.storage_node import StorageNode, StreamWanted
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.protocols.streams.tracker.tracker import Tracker
from shoal.protocols.streams.wire import HistoryCodec, StreamsCodec
from shoal.sim import RegionDelay, SimNode, Simulation, load_table
from shoal.sim.checkers import MachineInvariants
from shoal.sim.faults import _Cut
from shoal.sim.simulation import START_NS
from shoal.storage.message_store.layout import tail_of
from shoal.storage.message_store.store import Store
from shoal.storage.message_store.store_disk import StoreDisk

NAMED = tuple(StreamId(f"0xowner/named-{number}") for number in range(3))
HEARD_OF = tuple(StreamId(f"0xowner/heard-of-{number}") for number in range(3))
"""Streams that all storage nodes follow from the start, and streams of "*", which each of them
follows from the first message on that it is asked to keep."""
STREAMS = NAMED + HEARD_OF
STORAGE, SYNC = 0, 1  # the machines of a storage node
MESSAGES = 250
FAULTS_S = (20.0, 80.0)
QUIET_S = 60.0
ENDS_S = FAULTS_S[1] + QUIET_S
READS_S = 8.0  # of liveness
LATE_AT_ONCE = 12
LATE = (LATE_MS + 5_000, 2 * LATE_MS, 3 * LATE_MS)
RETRY_NS = 5 * S_NS


class Outcome(msgspec.Struct):
    """What came of one seed."""

    seed: int
    acknowledged: int = 0
    unkept: int = 0
    """Messages that were not acknowledged a minute after the last fault."""
    complete: int = 0
    incomplete: int = 0
    """Answers with what was found, and the word that there may be more."""
    failed: int = 0
    """Reads to which no storage node gave an answer."""
    untrue: list[str] = []
    """Answers that claimed to be complete, and were not."""
    unsure: list[str] = []
    """Answers a minute after the last fault that did not claim to be complete."""
    faults: dict[str, int] = {}

    @property
    def good(self) -> bool:
        return not self.untrue and not self.unsure


class Frozen(_Cut):
    """A node that is stopped, and whose links stay up: nothing comes of it, or to it."""

    def __init__(self, simulation: Simulation, node: SimNode) -> None:
        super().__init__(simulation, {node.id: None})


class CutOff(_Cut):
    """Two nodes between which nothing passes."""

    def __init__(self, simulation: Simulation, a: SimNode, b: SimNode) -> None:
        super().__init__(simulation, {a.id: None, b.id: None})

    def cuts(self, a: NodeId, b: NodeId) -> bool:
        return a != b and a in self._away and b in self._away


class Alone(_Cut):
    """Publishers that reach one storage node alone."""

    def __init__(self, simulation: Simulation, publishers: list[SimNode], shelf: SimNode) -> None:
        self._publishers = {node.id: None for node in publishers}
        self._shelf = shelf.id
        others = {node.id: None for node in simulation.with_role("storage") if node is not shelf}
        super().__init__(simulation, others)

    def cuts(self, a: NodeId, b: NodeId) -> bool:
        one, other = a in self._publishers, b in self._publishers
        return (one and b in self._away) or (other and a in self._away)


class Shelf:
    """A storage node: its key, its store, and the streams that it has heard of."""

    def __init__(self, truth: StorageTruth, number: int) -> None:
        self.key = PrivateKey.generate(truth.entropy)
        self.contact = Contact(self.key.address)
        self.streams: dict[StreamId, None] = {}
        self.unserved: dict[StreamId, None] = {}
        """Of these there may be rows on the disk, and they are not served."""
        self.serves = True
        self.busy = False
        """Something happens to it."""
        self._truth = truth
        self._number = number
        self._stores = 0
        self.store = self._new_store()
        make = partial(self._make)
        self.node = truth.simulation.add_node(self.key.address, make, role="storage")
        self.node.listeners.append(self._notified)
        self.node.disk_ns = 20 * MS_NS
        self.node.disk = StoreDisk(self.store)

    def _new_store(self) -> Store:
        self._stores += 1
        name = f"{self._number}-{self._stores}"
        return Store(self._truth.folder / name, SeededEntropy(f"{self._truth.seed} {name}"))

    def _make(self, node: SimNode) -> list[Machine]:
        truth = self._truth
        rng = truth.simulation.random("sync", node.index, node.incarnation)
        unserved = self.unserved.__contains__
        sync = StorageSync(
            node.id,
            lambda stream: truth.contacts,
            rng,
            has_damage=lambda: len(self.store.damage) > 0,
            is_unserved=unserved,
        )
        storage = StorageNode(
            node.id,
            lambda stream: self.serves,
            is_behind=sync.is_behind,
            missed=sync.missed,
            is_kept=lambda stream: stream in self.streams,
            holds=lambda stream: stream in self.streams,
            replicas=sync.replicas,
            is_unserved=unserved,
            unaware=sync.unaware,
        )
        return [storage, sync, HistoryClient(node.id, truth.trackers_of)]

    def start(self) -> None:
        self.node.start()
        self.streams = {}
        if self.serves:
            self.serve()
        else:
            self.unserved.update(dict.fromkeys([stream for stream, _ in self.store.places()]))

    def serve(self) -> None:
        self.serves = True
        for stream in dict.fromkeys([*NAMED, *[stream for stream, _ in self.store.places()]]):
            self.follow(stream)

    def follow(self, stream: StreamId) -> None:
        self.streams[stream] = None
        self.unserved.pop(stream, None)
        self.node.command(SYNC, FollowStream(stream))

    def _notified(self, event: Any) -> None:
        if isinstance(event, StreamWanted) and event.stream not in self.streams:
            self.follow(event.stream)

    def empty(self) -> None:
        """Its disk is lost."""
        self.store.close()
        self.store = self._new_store()
        self.node.disk = StoreDisk(self.store)
        self.unserved.clear()

    def damage(self, ids: list[MessageId]) -> None:
        """A byte of each of these messages is another one."""
        database = self.store._database
        messages, place_of = database.tables.messages, self.store._names.place

        def work(txn: Any) -> None:
            for id in ids:
                place = place_of(txn, id.stream, id.partition)
                assert place is not None
                key = place + tail_of(id)
                value = txn.get(key, db=messages)
                txn.put(key, value[:-1] + bytes([value[-1] ^ 1]), db=messages)

        database.write(work)

    def ids(self) -> set[MessageId]:
        """Every message on its disk."""
        return {
            row.id for stream in STREAMS for page in self.store.range(stream, 0) for row in page
        }


class Answer:
    """A read under way; the token of its command."""

    def __init__(self, command: ReadHistory, due: set[MessageId], told: set[MessageId]) -> None:
        self.command = command
        self.due = due
        """What was acknowledged before the question was asked, and belongs into the answer."""
        self.rows: list[MessageId] = []
        self.told = told
        """Of a log: what lies before the offset."""

    def missing(self) -> set[MessageId]:
        """Of what is due, what is not in the answer."""
        due, what = self.due - self.told, self.command.what
        if isinstance(what, LastMessages) and len(self.rows) >= what.count:
            oldest = cursor_of(self.rows[0])
            due = {id for id in due if cursor_of(id) > oldest}
        return due - set(self.rows)


class StorageTruth:
    """One seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.folder = folder
        self.rng = Random(seed)
        self.entropy = SeededEntropy(seed)
        self.outcome = Outcome(seed)
        self.simulation = Simulation(
            seed,
            RegionDelay(load_table("aws")),
            codecs=[StreamsCodec(), HistoryCodec()],
            wire=True,
            checkers=[MachineInvariants()],
        )
        tracker = PrivateKey.generate(self.entropy)
        self.tracker = Contact(tracker.address)
        self.contacts: tuple[Contact, ...] = ()
        self.shelves = [Shelf(self, number) for number in range(3)]
        self.gone: list[Shelf] = []
        self._name()
        self.simulation.add_node(tracker.address, self._make_tracker, role="tracker").start()
        self.publishers = [PrivateKey.generate(self.entropy) for _ in range(4)]
        self.nodes = [self._client(key.address) for key in self.publishers]
        self.readers = [self._client(PrivateKey.generate(self.entropy).address) for _ in range(3)]
        self.acknowledged: dict[MessageId, None] = {}
        self._lost: set[MessageId] = set()
        """With the disk of a storage node: before anybody was told that they are kept."""
        self._unkept: dict[MessageId, KeepDurably] = {}
        """Handed in, and handed in again until they are kept."""
        self.closed: list[UUID] = []
        """Logs under which nobody goes on."""
        self._previous: dict[tuple[int, StreamId], Position] = {}
        self.read_on = True
        """Readers ask again and again."""
        self._next_number = MESSAGES
        self._is_over = False

    def _name(self) -> None:
        self.contacts = tuple([shelf.contact for shelf in self.shelves])

    def trackers_of(self, stream: StreamId) -> tuple[Contact, ...]:
        return (self.tracker,)

    def _make_tracker(self, node: SimNode) -> list[Machine]:
        def policy(stream: StreamId) -> RandomPolicy:
            return RandomPolicy(4, self.simulation.random("policy", stream))

        return [Tracker(policy, storage_of=lambda stream: self.contacts)]

    def _client(self, id: Any) -> SimNode:
        def make(node: SimNode) -> list[Machine]:
            return [HistoryClient(node.id, self.trackers_of)]

        node = self.simulation.add_node(id, make)
        node.listeners.append(partial(self._notified, node))
        node.start()
        return node

    # What happens

    def run(self) -> Outcome:
        """The whole story."""
        sim, rng = self.simulation, self.rng
        for shelf in self.shelves:
            shelf.start()
        for number in range(MESSAGES):
            sim.at_s(rng.uniform(1, FAULTS_S[1]), partial(self._publish, number))
        at_s = FAULTS_S[0]
        while at_s < FAULTS_S[1] - 12:
            sim.at_s(at_s, self._fault)
            at_s += rng.uniform(1, 8)
        for reader in self.readers:
            sim.at_s(rng.uniform(1, 3), partial(self._read, reader))
        sim.at_s(ENDS_S, self._last_reads)
        sim.run_until_s(ENDS_S + READS_S)
        for shelf in [*self.shelves, *self.gone]:
            shelf.store.close()
        self.outcome.acknowledged = len(self.acknowledged)
        self.outcome.unkept = len(self._unkept)
        return self.outcome

    def _publish(
        self, number: int, late_ms: int | None = None, stream: StreamId | None = None
    ) -> None:
        publisher = number % len(self.publishers)
        key, stream = self.publishers[publisher], stream or self.rng.choice(STREAMS)
        now_ms = self.simulation.scheduler.now_ns // MS_NS
        # Some clocks are slow, and some messages were not to be had by a storage node for long.
        if late_ms is None:
            late_ms = self.rng.choice((0, 0, 0, 0, LATE_MS // 2, LATE_MS // 2, *LATE))
        id = MessageId(stream, 0, now_ms - late_ms, number, key.address, f"chain-{publisher}")
        previous = self._previous.get((publisher, stream))
        body = encode_body(Body(id, previous, 0, b"%d" % number))
        self._previous[publisher, stream] = Position(id.timestamp_ms, id.sequence)
        self._hand_in(self.nodes[publisher], KeepDurably(stream, key.sign(body) + body), id)

    def _hand_in(self, node: SimNode, command: KeepDurably, id: MessageId) -> None:
        self._unkept[id] = command
        node.command(0, command, id)

    def _read(self, reader: SimNode) -> None:
        stream, rng = self.rng.choice(STREAMS), self.rng
        now_ms = self.simulation.scheduler.now_ns // MS_NS
        told: set[MessageId] = set()
        what: What = MessageRange()
        due = {id for id in self.acknowledged if id.stream == stream}
        match rng.randrange(4):
            case 1:
                what = LastMessages(rng.choice((1, 3, 10, 1000)))
            case 2:
                begin, end = sorted(now_ms - rng.randrange(200_000) for _ in range(2))
                what = MessageRange(Position(begin, 0), Position(end, 10**9))
                due = {id for id in due if begin <= id.timestamp_ms <= end}
            case 3:
                shelf = rng.choice(self.shelves)
                log, seq = shelf.store.log, 0
                head = shelf.store.heads(stream, 0)[log]
                if head.last and rng.random() < 0.7:
                    seq = rng.randrange(head.last)
                    page = shelf.store.log_read(log, stream, 0, 0, 1000)
                    told = {row.id for row in page.rows if row.seq <= seq}
                    told |= {row.id for row in page.damaged if row.id and row.seq <= seq}
                if self.closed and rng.random() < 0.2:
                    log, seq, told = rng.choice(self.closed), 0, set()
                what = LogRange(log.bytes, seq)
        command = ReadHistory(stream, 0, what)
        reader.command(0, command, Answer(command, due, told))

    def _last_reads(self) -> None:
        self._is_over = True

    def _notified(self, node: SimNode, event: Any) -> None:
        match event:
            case KeptDurably(MessageId() as id):
                del self._unkept[id]
                if id not in self._lost:
                    self.acknowledged[id] = None
            case HistoryPage(Answer() as answer, rows):
                answer.rows += [decode_body(row.message.signed).id for row in rows]
                node.command(0, ReadMore(), answer)
            case HistoryEnded(Answer() as answer):
                self._ended(answer, event)
                if not self.read_on:
                    return
                pause_s = self.rng.uniform(0.05, 0.5)
                self.simulation.scheduler.after(
                    int(pause_s * 1000) * MS_NS, lambda _: self._read(node)
                )
            case KeepFailed(MessageId() as id, _, _, refused) if not refused:
                again = partial(self._hand_in, node, self._unkept[id], id)
                self.simulation.scheduler.after(RETRY_NS, lambda _: again())

    def _ended(self, answer: Answer, ended: HistoryEnded) -> None:
        outcome = self.outcome
        story = (
            f"{ended.reason} {ended.problem!r}: {answer.command.what} of {answer.command.stream}"
        )
        story = f"{self._now_s():.1f} s, {story}, {len(answer.rows)} rows"
        if ended.complete:
            outcome.complete += 1
            missing = answer.missing()
            if missing:
                outcome.untrue.append(
                    f"{story}, without {len(missing)}: {min(missing, key=cursor_of)}"
                )
            return
        if ended.reason == "incomplete":
            outcome.incomplete += 1
        else:
            outcome.failed += 1
        if self._is_over and not self._is_no_claim(answer, ended):
            outcome.unsure.append(story)

    def _is_no_claim(self, answer: Answer, ended: HistoryEnded) -> bool:
        """Of a stream that no storage node was ever asked to keep there is nothing to claim; and of
        a log whose disk was lost there is no more to be had."""
        if isinstance(answer.command.what, LogRange):
            if UUID(bytes=answer.command.what.log) in self.closed:
                return True
            return ended.reason in ("no-such-log", "beyond")
        return ended.problem.count("not-kept") == len(self.contacts) and not answer.due

    def _now_s(self) -> float:
        return (self.simulation.scheduler.now_ns - START_NS) / S_NS

    # What goes wrong

    def _fault(self) -> None:
        faults: list[Callable[[Shelf], str]] = [
            self._kill,
            self._kill,
            self._die_alone,
            self._die_alone,
            self._freeze,
            self._cut,
            self._empty,
            self._replace,
            self._step,
            self._damage,
            self._new_log,
            self._come_back_mute,
        ]
        free = [shelf for shelf in self.shelves if not shelf.busy]
        if not free:
            return
        name = self.rng.choice(faults)(self.rng.choice(free))
        self.outcome.faults[name] = self.outcome.faults.get(name, 0) + 1

    def _later(self, shelf: Shelf, action: Callable[[], None], least_s: float = 0.3) -> None:
        """The end of a fault."""
        shelf.busy = True

        def end() -> None:
            shelf.busy = False
            action()

        latest_s = FAULTS_S[1] - self._now_s()
        pause_s = min(self.rng.choice((least_s, 3.0, 20.0)) * self.rng.uniform(1, 2), latest_s)
        self.simulation.scheduler.after(int(pause_s * 1000) * MS_NS, lambda _: end())

    def _kill(self, shelf: Shelf) -> str:
        shelf.node.crash()
        self._later(shelf, shelf.start)
        return "killed"

    def _die_alone(self, shelf: Shelf) -> str:
        """Publishers reach it alone and have late messages, and it is killed soon after."""
        alone = Alone(self.simulation, self.nodes, shelf.node)
        self.simulation.add_shaper(alone)
        for number in range(LATE_AT_ONCE):
            self._publish(self._next_number + number, self.rng.choice(LATE))
        self._next_number += LATE_AT_ONCE
        shelf.busy = True

        def come_back() -> None:
            alone.heal()
            shelf.start()

        def die() -> None:
            shelf.node.crash()
            self._later(shelf, come_back)

        self.simulation.scheduler.after(self.rng.randrange(200, 2500) * MS_NS, lambda _: die())
        return "died alone"

    def _freeze(self, shelf: Shelf) -> str:
        frozen = Frozen(self.simulation, shelf.node)
        self.simulation.add_shaper(frozen)
        self._later(shelf, frozen.heal)
        return "frozen"

    def _cut(self, shelf: Shelf) -> str:
        other = self.rng.choice([one for one in self.shelves if one is not shelf])
        cut = CutOff(self.simulation, shelf.node, other.node)
        self.simulation.add_shaper(cut)
        self._later(shelf, cut.heal)
        return "cut off"

    def _step(self, shelf: Shelf) -> str:
        """Its clock is wrong for a while."""
        step_ns = self.rng.choice((-600, 600, 3600, 30 * 86400)) * S_NS
        shelf.node.step_wall(step_ns)
        self._later(shelf, lambda: shelf.node.step_wall(-step_ns))
        return "clock"

    def _damage(self, shelf: Shelf) -> str:
        """Of rows that another one has, too."""
        others = set().union(*[one.ids() for one in self.shelves if one is not shelf])
        both = sorted(shelf.ids() & others, key=lambda id: (id.stream, cursor_of(id)))
        if both:
            shelf.damage(self.rng.sample(both, min(len(both), 3)))
        return "damaged"

    def _new_log(self, shelf: Shelf) -> str:
        self.closed.append(shelf.store.log)
        shelf.store.new_log(self.simulation.scheduler.now_ns)
        return "new log"

    def _come_back_mute(self, shelf: Shelf) -> str:
        """It drains, or its registry has not said yet who keeps what."""
        shelf.node.crash()
        shelf.serves = False
        shelf.start()
        self._later(shelf, shelf.serve)
        return "unserved"

    def _may_lose(self, shelf: Shelf) -> bool:
        """Whether each acknowledged message is on the disk of another one that is named."""
        others: set[MessageId] = set()
        for one in self.shelves:
            if one is not shelf:
                others |= one.ids()
        if set(self.acknowledged) - others:
            return False
        # The word that these are kept may be on its way.
        self._lost |= shelf.ids() - others
        return True

    def _empty(self, shelf: Shelf) -> str:
        shelf.node.crash()
        word = "killed"
        # What was not acknowledged yet, and is on this disk alone, is nobody's loss.
        if self._may_lose(shelf):
            shelf.empty()
            word = "emptied"
        self._later(shelf, shelf.start)
        return word

    def _replace(self, shelf: Shelf) -> str:
        shelf.node.crash()
        if not self._may_lose(shelf):
            self._later(shelf, shelf.start)
            return "killed"
        number = len(self.shelves) + len(self.gone)
        fresh = Shelf(self, number)
        self.shelves[self.shelves.index(shelf)] = fresh
        self.gone.append(shelf)
        self._name()
        for other in self.shelves:
            if other.node.host is not None:
                for stream in other.streams:
                    other.node.command(SYNC, FollowStream(stream))
        self._later(fresh, fresh.start)
        return "replaced"


def run(seed: int) -> Outcome:
    """One seed, on stores in memory where the machine has a place for them."""
    shared = Path("/dev/shm")
    above = shared if os.access(shared, os.W_OK) else None
    with TemporaryDirectory(prefix="storage-truth-", dir=above) as folder:
        return StorageTruth(seed, Path(folder)).run()
