"""Random lives of an outbox beside a plain model of it: nothing lost, nothing double, no id twice.

The model knows what was staged, what was sealed, and what every position that may have been sent
stands for. A crash forgets what is in memory; the file is opened again, as a node does.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shoal.base.gateway_messages import Fingerprint
from shoal.base.ids import NodeId, StreamId
from shoal.base.units import MS_NS, S_NS
from shoal.identity import SeededEntropy
from shoal.identity.message_body import Position
from shoal.storage.config import OutboxConfig, StoreConfig
from shoal.storage.errors import (
    Fenced,
    MissingBatches,
    NotAReplay,
    NotStaged,
    OutboxFull,
    OutboxTooSmall,
)
from shoal.storage.outbox import Outbox
from shoal.storage.outbox_file import Attempt, ChunkPlace, Sending

OWNER = NodeId(bytes(20))
STREAM = StreamId("0x" + "ab" * 20 + "/out")
START_NS = 1_700_000_000 * S_NS
CONFIG = OutboxConfig(
    size_bytes_max=400, stale_ns=5 * S_NS, staged_ns=60 * S_NS, sweep_max=3, runs_max=3
)
SMALL = StoreConfig(map_bytes=16 * 4096)
QUERIES = ["q1", "q2"]

Place = tuple[str, int, int, int, int]  # query, epoch, batch, partition, attempt


class _Model(msgspec.Struct):
    """One query, plainly."""

    epoch: int = 0
    run: str = ""
    past: list[str] = []
    batch: int = -1
    fingerprint: Fingerprint = Fingerprint()
    given_up: tuple[int, int] = (0, 0)
    sealed: list[tuple[int, bytes]] = []
    """Partition and content of each row that counts, in order of sealing."""
    done: list[tuple[int, bytes]] = []
    """Those that the outbox said are done with, in order."""


class OutboxLife(RuleBasedStateMachine):
    """One outbox and its model."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="shoal-outbox-"))
        self.outbox = self._open()
        self.models = {query: _Model() for query in QUERIES}
        self.staged: dict[Place, list[list[tuple[int, bytes]]]] = {}
        self.lost: set[Place] = set()
        """Staged so long ago that it may have been swept up, or followed by newer attempts."""
        self.ids: dict[tuple[str, int, Position], tuple[bytes, Position | None]] = {}
        """What each position that may have been sent stands for, and what it names as previous."""
        self.heads: dict[tuple[str, int], Position] = {}
        self.now_ns = START_NS
        self.rows = 0

    def teardown(self) -> None:
        self.outbox.close()
        shutil.rmtree(self.folder)

    def _open(self) -> Outbox:
        return Outbox(self.folder, OWNER, SeededEntropy("outbox"), CONFIG, SMALL)

    def _row(self) -> bytes:
        self.rows += 1
        return b"row %d" % self.rows

    # What happens

    @rule(query=st.sampled_from(QUERIES), run=st.sampled_from("abcdef"))
    def take_epoch(self, query: str, run: str) -> None:
        model = self.models[query]
        if run in model.past[-CONFIG.runs_max :] and run != model.run:
            with pytest.raises(Fenced, match="another driver"):
                self.outbox.take_epoch(query, run, STREAM, False, self.now_ns)
            return
        epoch = self.outbox.take_epoch(query, run, STREAM, False, self.now_ns)
        if run != model.run:
            assert epoch == model.epoch + 1
            if model.run:
                model.past.append(model.run)
            model.epoch, model.run, model.given_up = epoch, run, (0, 0)
        assert epoch == model.epoch

    @rule(
        query=st.sampled_from(QUERIES),
        behind=st.integers(0, 1),
        ahead=st.integers(-1, 2),
        partition=st.integers(0, 1),
        attempt=st.integers(0, 2),
        partitions=st.lists(st.integers(0, 1), max_size=4),
    )
    def stage(
        self,
        query: str,
        behind: int,
        ahead: int,
        partition: int,
        attempt: int,
        partitions: list[int],
    ) -> None:
        model = self.models[query]
        if model.epoch == 0:
            return
        epoch, batch = model.epoch - behind, max(0, model.batch + ahead)
        place: Place = (query, epoch, batch, partition, attempt)
        groups: dict[int, list[tuple[int, bytes]]] = {}
        for stream_partition in partitions:
            groups.setdefault(stream_partition, []).append((1, self._row()))
        at = ChunkPlace(query, epoch, batch, partition, attempt, len(self.staged.get(place, [])))
        if behind:
            with pytest.raises(Fenced, match=f"this is epoch {epoch}"):
                self.outbox.stage(at, groups, self.now_ns)
            return
        wrong = batch < model.batch or model.batch < batch - 1
        if wrong or model.given_up == (epoch, batch):
            with pytest.raises((NotAReplay, MissingBatches, Fenced)):
                self.outbox.stage(at, groups, self.now_ns)
            return
        others = [p for p in self.staged if p[:4] == place[:4] and p != place]
        if place not in self.staged and len(others) >= CONFIG.attempts_max:
            self.lost |= set(others)
        try:
            taken = self.outbox.stage(at, groups, self.now_ns)
        except OutboxTooSmall:
            return
        except OutboxFull as error:
            if error.publishing:
                assert self.outbox.size_bytes > CONFIG.size_bytes_max - 100
            else:
                assert self.outbox.holder() is not None
            return
        except NotStaged:
            assert place in self.lost
            return
        assert taken == (batch > model.batch)
        if taken:
            rows = [(p, content) for p, group in groups.items() for _, content in group]
            self.staged.setdefault(place, []).append(rows)
            again = {0: [(1, b"the same chunk, told twice")]}
            assert self.outbox.stage(at, again, self.now_ns)

    @rule(
        query=st.sampled_from(QUERIES),
        behind=st.integers(0, 1),
        ahead=st.integers(-1, 2),
        other=st.booleans(),
        attempts=st.lists(st.integers(0, 1), max_size=2),
    )
    def seal(
        self, query: str, behind: int, ahead: int, attempts: list[int], other: bool = True
    ) -> None:
        model = self.models[query]
        if model.epoch == 0:
            return
        epoch, batch = model.epoch - behind, max(0, model.batch + ahead)
        places: list[Place] = [(query, epoch, batch, p, a) for p, a in enumerate(attempts)]
        wanted = [Attempt(place[3], place[4], len(self.staged.get(place, []))) for place in places]
        if behind:
            with pytest.raises(Fenced):
                self.outbox.seal(query, epoch, batch, wanted, self.now_ns)
            return
        self.rows += other
        fingerprint = Fingerprint(self.rows, "digest") if other else model.fingerprint
        if batch < model.batch or (batch == model.batch and fingerprint != model.fingerprint):
            with pytest.raises(NotAReplay, match="new checkpoint"):
                self.outbox.seal(query, epoch, batch, wanted, self.now_ns, fingerprint)
            return
        if model.batch < batch - 1:
            with pytest.raises(MissingBatches, match="restored from an old copy"):
                self.outbox.seal(query, epoch, batch, wanted, self.now_ns, fingerprint)
            return
        if model.given_up == (epoch, batch):
            with pytest.raises(Fenced, match="was given up"):
                self.outbox.seal(query, epoch, batch, wanted, self.now_ns, fingerprint)
            return
        if batch > model.batch and wanted:
            missing = [*wanted[:-1], msgspec.structs.replace(wanted[-1], chunks=99)]
            with pytest.raises(NotStaged, match="run the batch again"):
                self.outbox.seal(query, epoch, batch, missing, self.now_ns)
        try:
            answer = self.outbox.seal(query, epoch, batch, wanted, self.now_ns, fingerprint)
        except NotStaged:
            assert any(place in self.lost for place in places), "only what was swept is missing"
            return
        assert answer.replayed == (batch <= model.batch)
        if not answer.replayed:
            rows = [r for place in places for chunk in self.staged.get(place, []) for r in chunk]
            assert answer.rows == len(rows)
            model.sealed += rows
            model.batch, model.fingerprint = batch, fingerprint
            for place in [p for p in self.staged if p[:3] == (query, epoch, batch)]:
                del self.staged[place]

    @rule(
        query=st.sampled_from(QUERIES),
        partitions=st.lists(st.integers(0, 1), min_size=1, max_size=4),
    )
    def write_batch(self, query: str, partitions: list[int]) -> None:
        """A whole batch, as it mostly goes: by chance alone hardly one would be sealed."""
        if self.models[query].epoch == 0:
            self.take_epoch(query, "a")
        self.stage(query, 0, 1, 0, 0, partitions)
        self.seal(query, 0, 1, [0])

    @rule(query=st.sampled_from(QUERIES), batch=st.integers(0, 2))
    def discard(self, query: str, batch: int) -> None:
        model = self.models[query]
        if model.epoch == 0:
            return
        self.outbox.discard(query, model.epoch, batch)
        if batch > model.batch:
            model.given_up = model.epoch, batch
        for place in [p for p in self.staged if p[:3] == (query, model.epoch, batch)]:
            del self.staged[place]

    @rule(elapsed_ms=st.sampled_from([-61_000, -20, 0, 1, 30, 4_000, 6_000, 61_000]))
    def time_passes(self, elapsed_ms: int) -> None:
        self.now_ns += elapsed_ms * MS_NS  # clocks go back, too
        if elapsed_ms > 60_000:
            self.lost |= set(self.staged)

    @rule()
    def sweep(self) -> None:
        while self.outbox.sweep(self.now_ns):
            pass

    @rule(count=st.integers(1, 4), finish=st.booleans())
    def send(self, count: int, finish: bool) -> None:
        """Parts are begun in order; what is begun and not done with comes again after a crash."""
        for number in self.outbox.waiting():
            place = -1
            for _ in range(count):
                sending = self.outbox.begin(number, place, self.now_ns)
                if sending is None:
                    break
                place = sending.place
                self._sent(sending)
                if finish:
                    self.outbox.done(number, place)
                    query = self._query(sending)
                    self.models[query].done += [(sending.partition, row) for _, row in sending.rows]

    def _query(self, sending: Sending) -> str:
        names = {self.outbox._chain(query, 1): query for query in QUERIES}
        return names[sending.chain.partition(".")[0]]

    def _sent(self, sending: Sending) -> None:
        previous = sending.previous
        for offset, (_, row) in enumerate(sending.rows):
            at = Position(sending.first.timestamp_ms, sending.first.sequence + offset)
            key = (sending.chain, sending.partition, at)
            if key not in self.ids:
                chain = (sending.chain, sending.partition)
                assert previous == self.heads.get(chain), "each follows the one sent before it"
                self.heads[chain] = at
            assert self.ids.setdefault(key, (row, previous)) == (row, previous), "an id, twice"
            assert previous is None or previous < at
            previous = at

    @rule(query=st.sampled_from(QUERIES), partition=st.integers(0, 1), attempt=st.integers(0, 2))
    def fail_task(self, query: str, partition: int, attempt: int) -> None:
        """An attempt takes back what it has handed in."""
        model = self.models[query]
        if model.epoch:
            batch = model.batch + 1
            self.outbox.discard_attempt(query, model.epoch, batch, partition, attempt)
            self.lost.add((query, model.epoch, batch, partition, attempt))

    @rule()
    def crash(self) -> None:
        self.outbox.close()
        self.outbox = self._open()
        for model in self.models.values():
            model.given_up = (0, 0)

    # What holds

    @invariant()
    def rows_that_are_done_with_are_those_that_were_sealed(self) -> None:
        for model in self.models.values():
            assert model.done == model.sealed[: len(model.done)]

    @invariant()
    def what_waits_is_what_is_not_done_with(self) -> None:
        left = sum(len(m.sealed) - len(m.done) for m in self.models.values())
        assert bool(left) == bool(self.outbox.waiting())
        for query, model in self.models.items():
            if model.epoch:
                assert self.outbox.query_state(query).batch == model.batch

    @invariant()
    def chains_have_no_holes(self) -> None:
        named = {(chain, p, before) for (chain, p, _), (_, before) in self.ids.items() if before}
        assert named <= set(self.ids), "each row follows one that was sent"

    @invariant()
    def it_is_bounded(self) -> None:
        assert 0 <= self.outbox.size_bytes <= CONFIG.size_bytes_max


TestOutboxLife = OutboxLife.TestCase
TestOutboxLife.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
