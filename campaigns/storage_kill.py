"""A store is killed again and again while it writes; nothing that it acknowledged may be missing.

    .venv/bin/python -m campaigns.storage_kill                      200 kills, five to eight minutes
    .venv/bin/python -m campaigns.storage_kill --kills 20 --seed 7  fewer, other ones
    .venv/bin/python -m campaigns.storage_kill --json               one object, for machines

A writer process appends batches of 1 to 64 messages to three places, ranges to a replica, and lets
retention take steps. It says on a pipe when it calls the store, and when a call has returned. It
is killed with SIGKILL at a random moment: most of its time goes into commits, so most kills fall
into one. Then the store is opened again, and this must hold, after every kill:

- its pages are whole, and everything in it agrees with everything else (`check_invariants`)
- every row that was ever acknowledged or found has the seq it had, unless retention has removed it
- what retention removed was old enough to go
- the logs have no hole, and go on where they were

SIGKILL takes the process, not the machine: what a power loss adds is between lmdb's syncs and the
disk, and cannot be tested here.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from campaigns.kills import ROOT, Failure, Show, main, victim
from shoal.base.ids import MessageId, NodeId, StreamId
from shoal.identity import SystemEntropy
from shoal.identity.message_body import Body, encode_body
from shoal.protocols.streams.signed_message import VerifiedMessage
from shoal.storage.config import Retention, StoreConfig
from shoal.storage.message_store.store import Store
from shoal.storage.message_store.store_types import LogId, ReplicaRow

MODULE = "campaigns.storage_kill"
BATCH_MAX = 64
CONTENT_BYTES_MAX = 2_000
ALIVE_S_MAX = 0.15  # after the first acknowledgement: some dozens of commits
START_S_MAX = 0.4  # one kill in ten comes while the process starts and opens the store
AGE_NS = 5_000  # of the writer's own clock, which counts messages
OTHER_LOG = UUID(int=0xA)
PLACES = [(StreamId("0xowner/one"), 0), (StreamId("0xowner/one"), 1), (StreamId("0xowner/two"), 0)]
CONFIG = StoreConfig(
    retention=Retention(age_ns=AGE_NS, size_bytes_max=None, rows_per_step=200),
    map_bytes=64 * 1024,  # so that the map grows on the way, too
)

CALL = b"call"

Place = tuple[StreamId, int]


class Ack(msgspec.Struct, array_like=True):
    """What the writer says after a call has returned."""

    now_ns: int
    place: int
    rows: list[tuple[int, int]]
    """Seq and number of each message in the own log."""
    replica_last: int


def message(place: Place, number: int) -> VerifiedMessage:
    """The same bytes for the same number, in every process."""
    id = MessageId(*place, number, number % 3, NodeId(bytes([number % 5]) * 20), "chain")
    content = random.Random(number).randbytes(number * 7919 % CONTENT_BYTES_MAX)
    body = encode_body(Body(id, None, 0, content))
    return VerifiedMessage(id, None, 0, content, bytes(65) + body)


# The writer


def write(folder: str, seed: str, first: str) -> None:
    """Append until killed. `first` is the first message that nobody has used."""
    rng, number = random.Random(int(seed)), int(first)
    with Store(Path(folder), SystemEntropy(), CONFIG) as store:
        while True:
            place = rng.randrange(len(PLACES))
            kind = rng.random()
            ack = Ack(number, place, [], 0)
            say(CALL)
            if kind < 0.7:
                # One in eight is known already, unless it has been removed since.
                numbers = [
                    n if rng.random() > 0.125 else max(0, n - rng.randrange(1, 2_000))
                    for n in range(number, number + rng.randint(1, BATCH_MAX))
                ]
                results = store.append([message(PLACES[place], n) for n in numbers], number)
                ack.rows = [(r.seq, n) for r, n in zip(results, numbers, strict=True)]
            elif kind < 0.9:
                numbers = list(range(number, number + rng.randint(1, BATCH_MAX)))
                ack.replica_last = replicate(store, PLACES[place], numbers)
            else:
                store.retain(number)
            number += BATCH_MAX
            say(msgspec.json.encode(ack))


def say(line: bytes) -> None:
    """To the one who will kill us."""
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def replicate(store: Store, place: Place, numbers: list[int]) -> int:
    """Append messages with these numbers as the next rows of another node's log."""
    head = store.heads(*place).get(OTHER_LOG)
    first = head.last + 1 if head else 1
    sent = [message(place, number) for number in numbers]
    rows = [ReplicaRow(first + i, numbers[0], m.id, m) for i, m in enumerate(sent)]
    store.append_replica(OTHER_LOG, *place, rows, numbers[0])
    return rows[-1].seq


# The one who kills, and checks


class Ledger:
    """Everything that is known of the rows of a store."""

    def __init__(self) -> None:
        self.rows: dict[tuple[LogId, Place], dict[int, MessageId]] = {}
        self.ingest_ns: dict[tuple[Place, int], int] = {}
        self.replica_last: dict[Place, int] = {}
        self.now_ns = 0
        self.acknowledged = self.removed = 0
        self.log: LogId | None = None

    def acknowledge(self, ack: Ack, log: LogId) -> None:
        """The writer was told that this is durable."""
        place = PLACES[ack.place]
        self.now_ns = ack.now_ns
        known = self.rows.setdefault((log, place), {})
        for seq, number in ack.rows:
            if known.setdefault(seq, message(place, number).id) != message(place, number).id:
                raise Failure(f"seq {seq} was acknowledged for two messages")
        self.acknowledged += len(ack.rows)
        if ack.replica_last:
            self.replica_last[place] = ack.replica_last

    def check(self, store: Store) -> None:
        """What the store says now against all it ever said."""
        store.check_invariants()
        if self.log not in (None, store.log):
            raise Failure("the log has another name")
        self.log = store.log
        for place in PLACES:
            for log, head in store.heads(*place).items():
                self._check_log(store, log, place, head.first, head.last)
            replica_last = self.replica_last.get(place, 0)
            if replica_last:
                self._check_reaches(store, OTHER_LOG, place, replica_last)

    def _check_log(self, store: Store, log: LogId, place: Place, first: int, last: int) -> None:
        known = self.rows.setdefault((log, place), {})
        if known:
            self._check_reaches(store, log, place, max(known))
        found: dict[int, MessageId] = {}
        after = first - 1
        while after < last:
            page = store.log_read(log, *place, after, 1_000)
            for row in page.rows:
                found[row.seq] = row.id
                if row.signed != message(place, row.id.timestamp_ms).signed:
                    raise Failure(f"row {row.seq} of {log} at {place} has other bytes")
                if log == store.log:
                    self.ingest_ns[place, row.seq] = row.ingest_ns
            after = page.through
        if list(found) != list(range(first, last + 1)):
            raise Failure(f"{log} at {place} has a hole between {first} and {last}")
        for seq, id in known.items():
            if seq >= first and found[seq] != id:
                raise Failure(f"row {seq} of {log} at {place} was {id}, and is {found[seq]}")
            if seq < first and log == store.log:
                self._check_removed(place, seq)
        self.removed += sum(seq < first for seq in known) if log == store.log else 0
        self.rows[log, place] = found

    def _check_removed(self, place: Place, seq: int) -> None:
        # A row that was acknowledged and removed between two kills was never seen with its time.
        ingest_ns = self.ingest_ns.pop((place, seq), None)
        if ingest_ns is not None and ingest_ns + AGE_NS > self.now_ns + BATCH_MAX:
            raise Failure(f"row {seq} at {place} was removed before its time")

    def _check_reaches(self, store: Store, log: LogId, place: Place, seq: int) -> None:
        last = store.heads(*place)[log].last
        if last < seq:
            raise Failure(f"row {seq} of {log} at {place} was acknowledged, it ends at {last}")


def run(folder: Path, kills: int, seed: int, show: Show = lambda kill: None) -> dict[str, Any]:
    """Kill and check so many times; Failure says after which kill, and with which seed."""
    rng = random.Random(seed)
    ledger = Ledger()
    begin_s = time.monotonic()
    with Store(folder, SystemEntropy(), CONFIG) as store:
        log = store.log
    number, inside = 1, 0
    for kill in range(1, kills + 1):
        acks, in_call = killed_writer(folder, rng, number)
        inside += in_call
        try:
            for ack in acks:
                ledger.acknowledge(ack, log)
                number = ack.now_ns + BATCH_MAX
            with Store(folder, SystemEntropy(), CONFIG) as store:
                ledger.check(store)
        except Exception as error:
            raise Failure(f"after kill {kill} of --kills {kills} --seed {seed}: {error}") from error
        number += 2 * BATCH_MAX  # beyond what the writer may have stored unsaid
        show(kill)
    return {
        "campaign": "storage_kill",
        "kills": kills,
        "seed": seed,
        "acknowledged": ledger.acknowledged,
        "killed_in_a_call": inside,
        "removed_by_retention": ledger.removed,
        "missing": 0,
        "seconds": round(time.monotonic() - begin_s, 1),
    }


def killed_writer(folder: Path, rng: random.Random, number: int) -> tuple[list[Ack], bool]:
    """Start a writer and kill it at a random moment; what had returned, and whether one had not."""
    command = victim(MODULE, folder, rng.getrandbits(32), number)
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as writer:
        assert writer.stdout is not None
        early = rng.random() < 0.1
        first = b"" if early else writer.stdout.readline()
        time.sleep(rng.uniform(0, START_S_MAX if early else ALIVE_S_MAX))
        writer.send_signal(signal.SIGKILL)
        said = first + writer.stdout.read()
        if writer.wait() != -signal.SIGKILL:
            raise Failure(f"the writer ended by itself, with {writer.returncode}")
    lines = said.split(b"\n")[:-1]  # the last line may be half
    acks = [msgspec.json.decode(line, type=Ack) for line in lines if line != CALL]
    return acks, lines[-1:] == [CALL]


if __name__ == "__main__":
    main(MODULE, "Kill a store while it writes.", run, write)
