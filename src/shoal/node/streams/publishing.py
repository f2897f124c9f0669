"""A node's own messages: sealed if not everybody may read them, numbered and sent by the stream
machine, and kept by storage nodes if they are to be durable."""

from __future__ import annotations

import asyncio
import logging
import os
import struct
import zlib
from collections.abc import Awaitable, Callable, Collection
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from shoal.base.errors import HistoryUnavailable, MalformedMessage, NotFound, ShoalError
from shoal.base.ids import KEYS_PARTITION, MessageId, StreamId
from shoal.base.log_line_limit import log_of_others
from shoal.base.units import KIB, MIB
from shoal.identity.message_body import KEYS, decode_body
from shoal.node.background import Tasks
from shoal.node.keys.group_keys import NodeKeys
from shoal.node.streams.history import NodeHistory, NotKept
from shoal.protocols.streams.commands import Publish, PublishAccepted
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.runtime import RuntimeHost


class _Receipt(msgspec.Struct, eq=False):
    """The token of a Publish: what the machine said to it."""

    id: MessageId | None = None
    signed: bytes = b""


class Publishing:
    """How messages leave a node that is in their stream."""

    def __init__(
        self, host: RuntimeHost, machine: Callable[[], StreamNode], history: NodeHistory
    ) -> None:
        """`machine` gives the stream machine, or says why there is none."""
        self.keys: NodeKeys | None = None
        """What they are sealed with, in a network with a registry."""
        self._host = host
        self._machine = machine
        self._history = history
        self.unkept = UnkeptMessages(self._keep)
        """Durable messages that wait for storage nodes."""

    async def publish(
        self, stream: StreamId, content: bytes, content_type: int, partition: int, copies: int
    ) -> MessageId:
        """Send one message, and have so many storage nodes keep it."""
        sealer = None if self.keys is None else await self.keys.sealer(stream)
        seal = None if sealer is None else sealer.seal
        receipt = await self._issue(Publish(stream, content, content_type, partition, seal))
        assert receipt.id is not None  # the machine says so at once, or raises
        if copies:
            await self._have_kept(receipt.id, receipt.signed, copies)
        return receipt.id

    async def _have_kept(self, id: MessageId, signed: bytes, copies: int) -> None:
        """Return when it has its copies; else it is kept here, and tried again."""
        try:
            await self._keep(id.stream, signed, copies)
        except HistoryUnavailable as error:
            if error.refused:
                raise
            where = "has no room for it, and forgets it"
            if self.unkept.add(id, signed, copies):
                on_disk = await self.unkept.flushed()
                where = f"tries again, and has it {self._place(on_disk)}"
            raise HistoryUnavailable(f"{error}; this node {where}", message=id) from None
        except NotKept:
            raise
        except BaseException:  # whoever waits for it does not any more
            self.unkept.add(id, signed, copies)
            raise

    async def _keep(self, stream: StreamId, signed: bytes, copies: int) -> None:
        if self.keys is not None:
            await self.keys.keep(stream, copies)
        await self._history.keep(stream, signed, copies)

    def _place(self, on_disk: bool) -> str:
        path = self.unkept.path
        if path is None:
            return "in memory, for it has no key file"
        if not on_disk:
            return f"in memory, for {path} cannot be written"
        return f"on disk in {path}, for its next start, too"

    async def announce(self, stream: StreamId, content: bytes) -> bytes:
        """Hand out keys of this node's messages; what was signed."""
        return (await self._issue(Publish(stream, content, KEYS, KEYS_PARTITION))).signed

    def heard(self, event: Any) -> None:
        """The machine said something."""
        if type(event) is PublishAccepted and isinstance(event.token, _Receipt):
            event.token.id, event.token.signed = event.id, event.signed

    async def _issue(self, command: Publish) -> _Receipt:
        self._host.demand_session()
        if self._host.check_clock is not None:
            await self._host.check_clock()
        receipt = _Receipt()
        await self._host.issue(self._machine(), command, receipt)
        return receipt


# Durable messages that no storage node has confirmed: kept here, and tried again, until one does.
#
# `publish(durable=...)` signs a message and sends it to the live subscribers before storage nodes
# answer. If they do not, the message cannot be published again without being another message. So
# the node keeps it, under its id, and hands it to the storage nodes again in the background; the
# application may wait for that by its id (`Stream.retry`). A node with a keystore does so across
# restarts: the messages are in a file beside the keystore, which is on disk before the application
# hears that the message is not kept yet.
#
# The file is a log: a line with its format, then records, each with its length and a checksum. A
# record adds a message, or removes one that storage has by now. What a crash cut off at the end is
# dropped; when the messages are gone, or most of the file is, it is written anew.


SUFFIX = ".unkept"
UNKEPT_FORMAT = 1

MESSAGES_MAX = 10_000  # as many as may wait for storage nodes at once
BYTES_MAX = 64 * MIB  # a minute of a busy publisher; 128 of the largest messages
STREAMS_AT_ONCE = 64  # tried together; of each stream one message after the other
FAILURES_MAX = 3  # of one stream, before the others have their turn
PAUSE_S = 5.0  # between two rounds
PAUSE_MAX_S = 60.0  # after rounds in which nothing was kept
KEPT_MAX = 10_000  # ids remembered of messages that were kept at last
SPARE_BYTES = 256 * KIB  # of removed messages, before the file is written anew

_LINE = b"shoal unkept messages %d\n"
_RECORD = struct.Struct(">II")  # length, CRC-32
_ADD, _REMOVE = b"+", b"-"
_COPIES = struct.Struct(">B")

Keep = Callable[[StreamId, bytes, int], Awaitable[None]]
"""Return when so many storage nodes have a message; HistoryUnavailable if they do not."""

log = logging.getLogger("shoal.node")
log_others = log_of_others("shoal.node")


def unkept_path(keystore: Path) -> Path:
    """Where the messages of a keystore's owner are."""
    return keystore.with_name(keystore.name + SUFFIX)


class UnkeptMessage(msgspec.Struct, frozen=True):
    """A signed message that wants so many copies."""

    id: MessageId
    signed: bytes
    copies: int


def read_unkept(path: Path) -> list[UnkeptMessage]:
    """What waits in a file, which stays as it is: its node may run."""
    data, line = path.read_bytes(), _LINE % UNKEPT_FORMAT
    return _messages(_records(data, len(line))[0]) if data.startswith(line) else []


class UnkeptMessages:
    """Those of one node."""

    def __init__(self, keep: Keep) -> None:
        self.dropped = 0
        """Messages that were given up: there was no room, or all storage nodes refuse them."""
        self._keep = keep
        self._waiting: dict[MessageId, UnkeptMessage] = {}
        self._kept: dict[MessageId, None] = {}
        self._size_bytes = 0
        self._file: _File | None = None
        self._tasks = Tasks()
        self._trying: asyncio.Task[None] | None = None
        self._work = asyncio.Event()
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many there are."""
        return len(self._waiting)

    @property
    def path(self) -> Path | None:
        """The file that they are in; None: in memory only."""
        return None if self._file is None else self._file.path

    def open(self, path: Path) -> None:
        """Go on with what an earlier run has left in this file, and write it from now on."""
        self._file = _File(path)
        for message in self._file.read():
            self._put(message)

    def start(self) -> None:
        """Try again in the background, from now on; at once what an earlier run has left, for this
        one may be a command that is soon over."""
        self._trying = self._tasks.start(self._try())
        if self._waiting:
            self._work.set()

    async def close(self) -> None:
        """Stop trying; what waits is in the file, if there is one."""
        self._closed = True
        await self._tasks.close()
        if self._file is not None:
            await self._file.flush()
        elif self._waiting:
            log.warning(
                "%d durable messages were not confirmed by a storage node, and this node has no"
                " key file to keep them beside: they are lost unless subscribers had them",
                len(self._waiting),
            )

    def add(self, id: MessageId, signed: bytes, copies: int) -> bool:
        """Keep a message and try again; False if there is no room, or it is known."""
        full = len(self._waiting) >= MESSAGES_MAX or self._size_bytes + len(signed) > BYTES_MAX
        if id in self._waiting:
            return True
        if full:
            self.dropped += 1
            return False
        message = UnkeptMessage(id, signed, copies)
        self._put(message)
        if self._file is not None:
            self._file.add(message)
            if not self._closed:
                self._tasks.start(self._flush(self._file))
        self._work.set()
        return True

    async def flushed(self) -> bool:
        """Write what was added to disk; whether it is there."""
        return self._file is not None and await self._file.flush()

    async def retry(self, id: MessageId) -> None:
        """Return when a message has the copies that were wanted; HistoryUnavailable, NotFound."""
        message = self._waiting.get(id)
        if message is not None:
            await self._keep_one(message)
        elif id not in self._kept:
            raise NotFound(
                f"{id} does not wait to be kept: give the id that HistoryUnavailable has as"
                " `message`, at the node that published it"
            )

    # Steps

    async def _flush(self, file: _File) -> None:
        await file.flush()

    async def _try(self) -> None:
        pause_s = PAUSE_S
        if self._waiting:
            await self._round()
        while True:
            if not self._waiting:
                self._work.clear()
            await self._work.wait()
            await asyncio.sleep(pause_s)
            before = len(self._waiting)
            await self._round()
            gained = len(self._waiting) < before
            pause_s = PAUSE_S if gained else min(2 * pause_s, PAUSE_MAX_S)

    async def _round(self) -> None:
        streams = dict.fromkeys(id.stream for id in self._waiting)
        turns = asyncio.Semaphore(STREAMS_AT_ONCE)

        async def one(stream: StreamId) -> None:
            async with turns:
                await self._try_stream(stream)

        await asyncio.gather(*[one(stream) for stream in streams])
        await self.flushed()

    async def _try_stream(self, stream: StreamId) -> None:
        failures = 0
        for message in [m for m in self._waiting.values() if m.id.stream == stream]:
            if message.id not in self._waiting:
                continue  # the application was faster
            try:
                await self._keep_one(message)
            except ShoalError as error:
                failures += 1
                if message.id in self._waiting:
                    self._waiting[message.id] = self._waiting.pop(message.id)  # others first
                log.debug("%s is not kept yet: %s", message.id, error)
                if failures >= FAILURES_MAX:
                    return

    async def _keep_one(self, message: UnkeptMessage) -> None:
        try:
            await self._keep(message.id.stream, message.signed, message.copies)
        except HistoryUnavailable as error:
            if error.refused and message.id in self._waiting:
                self.dropped += 1
                self._remove(message)
                why = "%s is given up, all storage nodes refuse it: %s"
                log_others.warning(why, message.id, error)
            raise
        self._remove(message)
        self._kept[message.id] = None
        if len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]

    def _put(self, message: UnkeptMessage) -> None:
        self._waiting[message.id] = message
        self._size_bytes += len(message.signed)

    def _remove(self, message: UnkeptMessage) -> None:
        if self._waiting.pop(message.id, None) is None:
            return
        self._size_bytes -= len(message.signed)
        if self._file is not None:
            self._file.remove(message, self._waiting.values())


class _File:
    """The log of what waits. Written in order, by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unwritten: list[bytes] = []
        self._rewrite: list[UnkeptMessage] | None = None
        self._writing = asyncio.Lock()
        self._file_bytes = 0
        self._spare_bytes = 0

    def read(self) -> list[UnkeptMessage]:
        """What the file has; a file that is not ours is left alone, and said."""
        if not self.path.exists():
            return []
        data = self.path.read_bytes()
        line = _LINE % UNKEPT_FORMAT
        if not data.startswith(line):
            aside = self.path.with_name(self.path.name + ".unreadable")
            self.path.replace(aside)
            log.error("%s holds no messages of this version: it is %s now", self.path, aside)
            return []
        records, lost_bytes = _records(data, len(line))
        if lost_bytes:
            self._say_lost(data, lost_bytes)
        found = _messages(records)
        self._rewrite = list(found)  # what was cut off at the end, or removed, goes
        return found

    def _say_lost(self, data: bytes, lost_bytes: int) -> None:
        """A crash costs what was being written, which its publisher was not told is on disk; a
        damaged disk may cost more."""
        aside = self.path.with_name(self.path.name + ".damaged")
        try:
            _write_after(aside, 0, data)
            where = f"the file as it was is {aside}"
        except OSError as error:
            where = f"the file as it was cannot be kept ({error})"
        log.error(
            "%s: %d bytes are not as they were written, as after a crash: what was in them is not"
            " tried again; %s",
            *(self.path, lost_bytes, where),
        )

    def add(self, message: UnkeptMessage) -> None:
        """Write it with the next flush."""
        self._append(_add(message))

    def remove(self, message: UnkeptMessage, left: Collection[UnkeptMessage]) -> None:
        """Storage has it: written soon, for a message that is handed in twice is one message."""
        self._spare_bytes += len(message.signed)
        if not left or self._spare_bytes > max(SPARE_BYTES, self._file_bytes // 2):
            self._rewrite, self._unwritten = list(left), []
        else:
            self._append(_frame(_REMOVE + _digest(message.signed)))

    async def flush(self) -> bool:
        """Write everything up to now, and say whether it is on disk; what goes wrong is in the
        log, and tried again."""
        async with self._writing:
            if self._rewrite is None and not self._unwritten:
                return True
            rewrite, unwritten = self._rewrite, self._unwritten
            self._rewrite, self._unwritten = None, []
            try:
                await asyncio.to_thread(self._write, rewrite, unwritten)
            except OSError as error:
                if rewrite is not None:
                    self._rewrite = rewrite if self._rewrite is None else self._rewrite
                self._unwritten = unwritten + self._unwritten
                log.error("%s cannot be written: %s", self.path, error)
                return False
            return True

    def _append(self, record: bytes) -> None:
        self._unwritten.append(record)

    def _write(self, rewrite: list[UnkeptMessage] | None, unwritten: list[bytes]) -> None:
        data = b"".join(unwritten)
        if rewrite is not None or not self.path.exists():
            head = _LINE % UNKEPT_FORMAT
            data = head + b"".join(_add(message) for message in rewrite or ()) + data
            beside = self.path.with_name(self.path.name + ".new")
            _write_after(beside, 0, data)
            beside.replace(self.path)
            _sync_folder(self.path.parent)
            self._file_bytes, self._spare_bytes = len(data), 0
        else:
            _write_after(self.path, self._file_bytes, data)
            self._file_bytes += len(data)


def _write_after(path: Path, begin: int, data: bytes) -> None:
    """Durably; whatever the file has behind that place, a write that failed perhaps, goes."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, begin)
        os.lseek(descriptor, begin, os.SEEK_SET)
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _add(message: UnkeptMessage) -> bytes:
    return _frame(_ADD + _COPIES.pack(min(message.copies, 255)) + message.signed)


def _frame(record: bytes) -> bytes:
    return _RECORD.pack(len(record), zlib.crc32(record)) + record


def _records(data: bytes, at: int) -> tuple[list[bytes], int]:
    """Those that are as they were written, and how many bytes are not."""
    found, lost_bytes = [], 0
    while at < len(data):
        end, checksum = len(data), -1
        if at + _RECORD.size <= len(data):
            length, checksum = _RECORD.unpack_from(data, at)
            end = at + _RECORD.size + length
        record = data[at + _RECORD.size : end]
        if end <= len(data) and zlib.crc32(record) == checksum:
            found.append(record)
        else:
            lost_bytes += min(end, len(data)) - at
        at = end
    return found, lost_bytes


def _messages(records: list[bytes]) -> list[UnkeptMessage]:
    """Those that were added and not removed."""
    found: dict[bytes, UnkeptMessage] = {}
    for record in records:
        kind, rest = record[:1], record[1:]
        if kind == _REMOVE:
            found.pop(rest, None)
        elif kind == _ADD and rest:
            try:
                id = decode_body(rest[1:]).id
            except MalformedMessage:
                continue  # no record of ours, whatever its checksum says
            found[_digest(rest[1:])] = UnkeptMessage(id, rest[1:], rest[0])
    return list(found.values())


def _digest(signed: bytes) -> bytes:
    return blake2b(signed, digest_size=16).digest()
