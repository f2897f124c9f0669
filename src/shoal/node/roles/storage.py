"""The storage role of a node: it keeps the streams whose settings name it.

It is an ordinary member of those streams: what it takes goes to the storage machine, in no order,
whatever the subscribers of the same node want. Streams that the network file names are joined at
the start, and so are those that the store holds already, and those that the registry says it is to
keep, when it says so; where the settings of "*" name this node, another one is joined when its
tracker or another storage node says that there is one, or a publisher asks to have it kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from random import Random
from time import time_ns
from typing import Any

from shoal.base.errors import ShoalError, UsageError
from shoal.base.gateway_messages import UnheardNode
from shoal.base.ids import Contact, MessageId, NodeId, StreamId, parse_stream_id, show_node_id
from shoal.base.log_line_limit import log_of_others
from shoal.base.units import MS_NS, S_NS
from shoal.config.network_file import NetworkFile
from shoal.config.sections import ANY_STREAM, StorageSection
from shoal.config.stream_settings import Terms
from shoal.identity import Entropy
from shoal.identity.topics.cid import Cid, parse_cid, show_cid
from shoal.identity.topics.descriptor_codec import encode_descriptor
from shoal.identity.topics.descriptors import EventDescriptor, TopicDescriptor, is_allowed
from shoal.kernel.machine import Machine
from shoal.node.background import Tasks
from shoal.node.streams.memberships import Memberships
from shoal.node.topics.client import NodeTopics
from shoal.node.topics.event import Event
from shoal.node.topics.subscription import TopicSubscription
from shoal.node.topics.topic import EARLIEST, Topic
from shoal.protocols.streams.commands import CompareStream, MessageTaken, StreamsCompared
from shoal.protocols.streams.config import FUTURE_NS, LATE_MS, StorageConfig
from shoal.protocols.streams.history.anti_entropy import (
    FollowNodes,
    FollowStream,
    StorageSync,
    StreamListed,
    UnfollowStream,
)
from shoal.protocols.streams.history.log_entries import event_message, is_topic
from shoal.protocols.streams.history.storage_node import KeepMessage, StorageNode, StreamWanted
from shoal.protocols.streams.permissions import AccessTable
from shoal.protocols.streams.stream_quota import NameQuota, PrefixOf, Quotas
from shoal.runtime import RuntimeHost
from shoal.storage.config import Retention, StoreConfig
from shoal.storage.errors import StoreError, StoreGone
from shoal.storage.lmdb_file import holds_something, sync_folder
from shoal.storage.message_store.store import Store
from shoal.storage.message_store.store_disk import StoreDisk

log = logging.getLogger("shoal.storage")

DAY_NS = 24 * 3600 * S_NS
GIGABYTE = 1_000_000_000
COMPARE_S = 5.0  # a reader of the HTTP log waits so long for other storage nodes
MARKER_SUFFIX = ".stores"  # beside the keystore: the folders in which its key has had a store
ROWLESS_MAX = 10_000  # streams kept of which nothing is stored: a few kilobytes of memory each
LOOKED_THROUGH = 256  # names, or streams, that are looked at for one that can go
SCARCE = 10  # less than one name in so many is left
LOOK_NS = 1 * S_NS  # between such looks
KNOWN_MAX = 10_000  # streams of which it is remembered whether they are kept


class StorageRole:
    """The machines and the disk of a storage node. Made before the host, started after it."""

    def __init__(
        self,
        terms: Terms,
        section: StorageSection,
        node: NodeId,
        entropy: Entropy,
        access: AccessTable | None = None,
        is_tracker: Callable[[NodeId], bool] = lambda node: False,
        prefix_of: PrefixOf = lambda peer: None,
    ) -> None:
        """Opens the store; StoreError if that cannot be."""
        self.store = open_store(terms.network, section, entropy)
        self.disk = StoreDisk(self.store)
        self.streams: dict[StreamId, None] = {}
        """Streams that are kept, and joined."""
        # Rows of them are on the disk, and they are not kept, or not yet: the registry has not said
        # by whom, or the settings name this node no more, or it drains.
        self._unserved = dict.fromkeys([stream for stream, _ in self.store.places()])
        rng, closed = Random(entropy.token(16)), access is not None
        self.sync = StorageSync(
            node,
            self.peers_of,
            rng,
            closed=closed,
            permits=self._permits,
            has_damage=lambda: len(self.store.damage) > 0,
            is_unserved=self._unserved.__contains__,
        )
        self._took_copy = self.sync.stored  # for each message: looked up once
        self.drains = section.drain
        """The other storage nodes take over: nothing is kept, or told to readers."""
        self.machine = StorageNode(
            node,
            (lambda stream: False) if section.drain else self.keeps,
            access=access,
            is_behind=self.sync.is_behind,
            missed=self.sync.missed,
            holds=self.holds,
            replicas=self.sync.replicas,
            is_unserved=self._unserved.__contains__,
            unaware=self.sync.unaware,
            took=self._took,
            is_tracker=is_tracker,
            is_kept=self.streams.__contains__,
            quota=NameQuota(_quotas(section), self._names_used, prefix_of),
        )
        self._rowless: dict[StreamId, None] = {}  # of those, the ones of which nothing is stored
        self._others = 0  # names that the store has beside those of our streams
        self._looked_ns = 0  # when the store was last asked for names without rows
        self._terms = terms
        self._node = node
        self._known: dict[StreamId, bool] = {}
        self._named = self._read_named()
        self._topics: dict[Cid, TopicDescriptor] = {}
        self._compared = asyncio.Event()
        self._host: RuntimeHost | None = None
        self._members: Memberships | None = None

    @property
    def machines(self) -> tuple[Machine, ...]:
        return self.machine, self.sync

    @property
    def problem(self) -> str | None:
        """Why nothing can be stored now, or what cannot be read, for people; None if all is
        well."""
        return self.disk.problem or self.store.damage.problem

    @property
    def behind(self) -> str | None:
        """What this node may lack of what other storage nodes have, for people, and how far it is
        with getting it; None if it has been compared with all of them."""
        lacking = [one for one in self.sync.progress() if one.uncompared or one.rows_behind]
        said = []
        for one in lacking:
            node = show_node_id(one.node)
            if one.rows_behind:
                said.append(f"{one.rows_behind:,} rows behind {node}")
            elif one.linked:
                said.append(f"{one.uncompared:,} streams not compared with {node} yet")
            else:
                said.append(f"{one.uncompared:,} streams never compared with {node}, which is away")
        return "; ".join(said) or None

    async def unheard(self, stream: StreamId) -> list[UnheardNode]:
        """Compare a stream with its other storage nodes now. Those with which that could not be
        done may have messages that were acknowledged, and are not here."""
        if self._host is None:
            return []
        since_ns = self._host.now_ns()
        self._host.command(self.sync, CompareStream(stream, since_ns))
        with suppress(TimeoutError):
            async with asyncio.timeout(COMPARE_S):
                while self._is_comparing(stream, since_ns):
                    self._compared.clear()
                    await self._compared.wait()
        # The one that goes on under our key may have what is not here.
        own = [UnheardNode(show_node_id(self._node), 0, 0)] if self.machine.replaced else []
        return own + [
            UnheardNode(
                show_node_id(replica.node),
                replica.until_ms,
                max(0, replica.until_ms - LATE_MS),
            )
            for replica in self.sync.replicas(stream, self._host.now_ns())
            if replica.compared_ns < since_ns
        ]

    def _is_comparing(self, stream: StreamId, since_ns: int) -> bool:
        assert self._host is not None
        return any(
            replica.answers and max(replica.compared_ns, replica.tried_ns) < since_ns
            for replica in self.sync.replicas(stream, self._host.now_ns())
        )

    def keeps(self, stream: StreamId) -> bool:
        """Whether the settings of a stream name this node. Topics are no streams: nobody has their
        events kept but TopicLogs, whatever the settings of "*" are."""
        if is_topic(stream):
            return False
        known = self._known.get(stream)
        if known is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            contacts = self._terms.storage_of(stream)
            known = self._known[stream] = any(c.node == self._node for c in contacts)
        return known

    def holds(self, stream: StreamId) -> bool:
        """Whether this node has heard of a stream that it is to keep, and takes part in it: before
        that it has nothing to say about it."""
        return stream in self.streams

    def names(self, stream: StreamId) -> bool:
        """Whether the network file or the registry names a stream, and not only "*" covers it."""
        return stream in self._named or self._terms.known(stream) is not None

    def peers_of(self, stream: StreamId) -> tuple[Contact, ...]:
        """The storage nodes of a stream. Of topics nobody is named: all that the network file lists
        are asked, and answer if they keep the same ones."""
        if is_topic(stream):
            return tuple([entry.contact() for entry in self._terms.network.storage_nodes])
        return self._terms.storage_of(stream)

    def uncopied(self) -> dict[tuple[StreamId, int], int]:
        """Rows of the own log that no other storage node is known to have, by stream and partition.
        It reads the store, and goes over all places."""
        found = {}
        for stream, partition in self.store.places():
            head = self.store.heads(stream, partition)[self.store.log]
            if count := self.sync.lacking(stream, partition, head.first, head.last):
                found[stream, partition] = count
        return found

    def _read_named(self) -> dict[StreamId, None]:
        """The streams that the network file names."""
        settings = self._terms.network.streams
        return dict.fromkeys([parse_stream_id(s.id) for s in settings if s.id != ANY_STREAM])

    # Life

    def start(self, host: RuntimeHost, members: Memberships | None) -> None:
        """The host runs: keep what is to be kept. Members take the node into streams."""
        self._host, self._members = host, members
        host.listeners.append(self._notified)
        host.readiness.add("storage", self._check)
        self._begin_all()

    def _begin_all(self) -> None:
        host = self._host
        assert host is not None  # it runs
        for stream in list(self.streams):
            host.command(self.sync, FollowStream(stream))
        beside = self._terms.network.storage_of(StreamId(ANY_STREAM))
        if any(contact.node == self._node for contact in beside):
            host.command(self.sync, FollowNodes(beside))
        if self.drains:
            for stream in dict.fromkeys(stream for stream, _ in self.store.places()):
                host.command(self.sync, FollowStream(stream))
            return
        held = [stream for stream, _ in self.store.places()]
        for stream in [*self._named, *held, *self._terms.streams]:
            self.keep(stream)
        self._others = sum(stream not in self.streams for stream in dict.fromkeys(held))

    def keep(self, stream: StreamId, *, for_good: bool = True) -> None:
        """Keep a stream from now on, if its settings name this node; or until others need the room,
        as long as nothing of it is stored."""
        if stream in self.streams or not self.keeps(stream) or self._host is None or self.drains:
            return
        self.streams[stream] = None
        self._unserved.pop(stream, None)
        if not for_good:
            self._rowless[stream] = None
            self._make_room()
        self._host.command(self.sync, FollowStream(stream))
        if self._members is not None:
            self._members.keep(stream)

    def _make_room(self) -> None:
        """Of streams without a row only so many are kept: those that nobody else is in go first,
        then those that came first."""
        if len(self._rowless) <= ROWLESS_MAX:
            return
        members, oldest = self._members, list(islice(self._rowless, LOOKED_THROUGH))
        alone = [s for s in oldest if members is None or not members.has_neighbours(s)]
        stream = (alone or oldest)[0]
        with suppress(ShoalError):  # the disk fails: then it stays
            if self.store.stream_heads(stream):  # they came from another storage node
                del self._rowless[stream]
            else:
                self._part(stream)

    def _part(self, stream: StreamId) -> None:
        """Keep a stream no more of which nothing is stored."""
        assert self._host is not None  # or it would not be kept
        del self.streams[stream], self._rowless[stream]
        self.machine.quota.release(stream)
        self._host.command(self.sync, UnfollowStream(stream))
        if self._members is not None:
            self._members.unkeep(stream)

    def _names_used(self) -> int:
        """How many streams have a name that others cannot have. When few are left, the store
        forgets those of which retention has left nothing."""
        used = len(self.streams) - len(self._rowless) + self._others
        if self._host is None or SCARCE * used < (SCARCE - 1) * self.machine.config.streams_max:
            return used
        now_ns = self._host.now_ns()
        if now_ns - self._looked_ns >= LOOK_NS:
            self._looked_ns = now_ns
            with suppress(ShoalError):  # the disk fails: whoever stores something hears of it
                for stream in self.store.forget_empty(LOOKED_THROUGH):
                    self.machine.quota.release(stream)
                    if stream in self.streams:
                        self._rowless[stream] = None
                    else:
                        self._others -= 1
                        self._unserved.pop(stream, None)
        return len(self.streams) - len(self._rowless) + self._others

    def _took(self, id: MessageId) -> None:
        stream = id.stream
        if self._rowless:
            self._rowless.pop(stream, None)
        if stream not in self.streams:
            self._unserved[stream] = None  # its room was given away while it was being stored
        self._took_copy((stream, id.partition))

    def replaced(self, problem: str) -> None:
        """A newer session of this node's key runs: store nothing any more, and tell what is held
        as what it is, and not as all that there is."""
        self.disk.refuse(problem)
        self.machine.replaced = self.sync.replaced = True

    def reload(self, section: StorageSection) -> str | None:
        """The network file says something else: who keeps which streams beside this node, and by
        which limits. What of that cannot be taken now."""
        self._known.clear()
        self._named = self._read_named()
        problem: str | None = None
        try:
            self.store.limit(store_config(section).retention)
        except UsageError as error:
            problem = str(error)
        self._begin_all()
        return problem

    def follow_topic(self, id: Cid, topic: TopicDescriptor) -> None:
        """The events of a topic are appended to the store: follow its other storage nodes."""
        if id not in self._topics and self._host is not None:
            self._topics[id] = topic
            self._unserved.pop(StreamId(show_cid(id)), None)
            self._host.command(self.sync, FollowStream(StreamId(show_cid(id))))

    def stream_changed(self, stream: StreamId) -> None:
        """Its terms were read, again perhaps: they may name this node, or others beside it."""
        self._known.pop(stream, None)
        if stream in self.streams and self._host is not None:
            self._host.command(self.sync, FollowStream(stream))
        self.keep(stream)

    # Steps

    def _check(self) -> str | None:
        problem = self.disk.problem
        if problem is not None:
            return f"nothing can be stored: {problem}"
        if self.store.retention_waits:
            return (
                "messages have expired by the system clock alone, and it was set not long ago, or"
                " is off: they stay until it is right. Set the clock"
            )
        return self.problem or self._catching_up()

    def _catching_up(self) -> str | None:
        # One that is away is no reason: this node cannot change that, and readers are told.
        new = [one for one in self.sync.progress() if one.catching_up]
        if not new:
            return None
        rows, node = sum(one.rows_behind for one in new), show_node_id(new[0].node)
        return (
            f"this storage node may be behind, and catches up by itself: {new[0].uncompared:,} of"
            f" {new[0].streams:,} streams were not compared with {node} yet, {rows:,} rows are"
            " on their way"
        )

    def _notified(self, event: Any) -> None:
        if type(event) is MessageTaken:
            if event.message.id.stream in self.streams and self._host is not None:
                self._host.command(self.machine, KeepMessage(event.message))
        elif type(event) is StreamsCompared:
            self._compared.set()
        elif type(event) is StreamListed:
            self.keep(event.stream)
        elif type(event) is StreamWanted:
            self.keep(event.stream, for_good=False)

    def _permits(self, event: EventDescriptor) -> bool:
        topic = self._topics.get(event.topic)
        return topic is not None and is_allowed(topic, event)


def _quotas(section: StorageSection) -> Quotas:
    defaults = StorageConfig().quotas
    return Quotas(
        defaults.names_max,
        section.streams_of_key_max or defaults.per_key,
        section.streams_of_prefix_max or defaults.per_prefix,
    )


def open_store(network: NetworkFile, section: StorageSection, entropy: Entropy) -> Store:
    """The store of a node, made if it is to be made; StoreGone if it was there once and is not."""
    folder = network.path(section.folder)
    may_create = not is_missing(network, section) if section.create is None else section.create
    try:
        store = Store(folder, entropy, store_config(section), may_create=may_create)
    except StoreGone as error:
        why = "this key has had one there" if section.create is None else "create = false says so"
        raise StoreGone(
            f"{error}, and none is made, for {why}: mount its disk, or restore a backup (`shoal"
            " restore`); or, to begin with an empty one, write create = true under [storage]"
        ) from None
    try:
        _note_place(network, folder)
    except BaseException:
        store.close()
        raise
    return store


def is_missing(network: NetworkFile, section: StorageSection) -> bool:
    """Whether the node's key has had a store in that folder, and there is none now."""
    marker = _marker(network)
    if marker is None or holds_something(network.path(section.folder)):
        return False
    return _place(marker, network.path(section.folder)) in _places(marker)


def _marker(network: NetworkFile) -> Path | None:
    """Where it is noted which stores a key has had: beside the key, which is not lost with a disk
    that is for data. None without a keystore: such a node is another one at each start."""
    return None if network.node.key is None else marker_path(network.path(network.node.key))


def marker_path(keystore: Path) -> Path:
    """Where the stores of a keystore's owner are noted."""
    return keystore.with_name(keystore.name + MARKER_SUFFIX)


def _place(marker: Path, folder: Path) -> str:
    """A folder as it is noted: what is below the key's folder may be moved together with it."""
    whole, beside = folder.resolve(), marker.resolve().parent
    if whole.is_relative_to(beside):
        return whole.relative_to(beside).as_posix()
    return whole.as_posix()


def _places(marker: Path) -> list[str]:
    try:
        return marker.read_text().splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{marker} cannot be read: {error}") from error


def _note_place(network: NetworkFile, folder: Path) -> None:
    marker = _marker(network)
    if marker is None:
        return
    places, place = _places(marker), _place(marker, folder)
    if place in places:
        return
    unfinished = marker.with_name(marker.name + ".new")
    try:
        unfinished.write_text("".join(f"{line}\n" for line in [*places, place]))
        unfinished.replace(marker)
        sync_folder(marker.parent)
    except OSError as error:
        log.warning(
            "%s cannot be written (%s), so a store that is not at %s at the next start is made"
            " anew without a word: write create = false under [storage]",
            marker,
            error.strerror,
            folder,
        )


def store_config(section: StorageSection) -> StoreConfig:
    """How a store keeps what it is told, as the section says."""
    size_bytes_max = int(section.gigabytes_max * GIGABYTE)
    age_ns = None if section.days_max is None else int(section.days_max * DAY_NS)
    return StoreConfig(
        retention=Retention(age_ns=age_ns, size_bytes_max=size_bytes_max),
        map_bytes_max=max(StoreConfig().map_bytes_max, 2 * size_bytes_max),
    )


# Durable topics in the logs of a storage node, for readers who go by offsets, such as Spark.
#
# The node subscribes to the topics that `[storage]` names, and appends their events to its store,
# where a topic has the place of a stream: seqs are in the order in which events came here. A row is
# the event's block, as those who signed it wrote it. Once a topic is found, the other storage nodes
# that keep it are followed as those of streams are (protocols/streams/history/sync.py), so that
# each can serve the logs of the others.
#
# After a restart all events that the topic still has are told again: those that the store has, it
# knows by their cores. Those that retention took before must not come twice, so what is older than
# retention's horizon is left out. So is what is stamped ahead of our clock by more than messages
# may be: such an event would push the watermark of every query, and, once it is let go, the
# horizon.


ROWS_MAX = 100  # events that wait to be written: with the largest payloads, one transaction
RETRY_S = 5.0  # a topic that nobody knows yet, a disk that is full
log_others = log_of_others("shoal.storage")


class TopicLogs:
    """The logs of the topics that a storage node keeps for readers."""

    def __init__(self, role: StorageRole, section: StorageSection) -> None:
        self.store = role.store
        self.left_out = 0
        """Events from the future, or from before 1970, since the start."""
        self._role = role
        self._topics = {StreamId(show_cid(parse_cid(text))): None for text in section.topics}
        self._tasks = Tasks()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shoal-topic-logs")

    def keeps(self, topic: StreamId) -> bool:
        """Whether events of a topic, by its CID, are appended here."""
        return topic in self._topics

    def start(self, topics: NodeTopics) -> None:
        """The node runs: follow every topic until its end."""
        for topic in self._topics:
            self._tasks.start(self._follow(topics, parse_cid(topic)))

    async def close(self) -> None:
        """Append nothing more; the store is the role's."""
        await self._tasks.close()
        self._thread.shutdown()

    # Steps

    async def _follow(self, topics: NodeTopics, id: Cid) -> None:
        """Append all that comes; whatever goes wrong, again."""
        told: str | None = None
        while True:
            try:
                topic = Topic(topics, id, await topics.find(id))
                self._role.follow_topic(id, topic.descriptor)
                async with topic.subscribe(EARLIEST, meta=False, queue_max=ROWS_MAX) as events:
                    await self._append_all(StreamId(show_cid(id)), events)
            except ShoalError as error:
                if str(error) != told:
                    log.warning("topic %s is not kept now: %s", show_cid(id), error)
                told = str(error)
            await asyncio.sleep(RETRY_S)

    async def _append_all(self, topic: StreamId, events: TopicSubscription) -> None:
        """One transaction for all that came while the one before was written."""
        some: list[Event] = []
        came, room = asyncio.Event(), asyncio.Event()

        async def gather() -> None:
            try:
                async for event in events:
                    some.append(event)
                    came.set()
                    if len(some) >= ROWS_MAX:
                        room.clear()
                        await room.wait()
            finally:
                came.set()

        gathering = asyncio.create_task(gather())
        try:
            while some or not gathering.done():
                await came.wait()
                came.clear()
                batch, some[:] = list(some), []
                room.set()
                await self._append(topic, batch)
            await gathering  # raises what ended it
        finally:
            gathering.cancel()
            await asyncio.gather(gathering, return_exceptions=True)

    async def _append(self, topic: StreamId, events: list[Event]) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._append_now, topic, events)

    def _append_now(self, topic: StreamId, events: list[Event]) -> None:
        """In the thread: the store may be busy, with a look into it as with a row."""
        if self._role.disk.refused is not None:
            raise StoreError(self._role.disk.refused)
        at = self.store.stream_heads(topic).get(0)
        horizon_ms, now_ns = 0 if at is None else at.horizon_ms, time_ns()
        kept = []
        for event in events:
            created_ms = event.descriptor.metadata.created_ms
            # What is left out now does not come again: a clock set back leaves out nothing.
            latest_ns = max(now_ns, self.store.certain_ns or 0) + FUTURE_NS
            if not 0 <= created_ms * MS_NS <= latest_ns:
                self.left_out += 1
                log_others.warning("event %s is left out: it is of %s", event.cid, event.created)
            elif created_ms >= horizon_ms:
                kept.append(event_message(event.descriptor, encode_descriptor(event.descriptor)))
        self.store.append(kept, now_ns)
