"""An outbox by example; its random lives are in test_outbox_stateful.py."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from shoal.base.errors import NotFound, UsageError
from shoal.base.gateway_messages import Fingerprint
from shoal.base.ids import NodeId, StreamId
from shoal.base.units import MS_NS, S_NS
from shoal.identity import SeededEntropy
from shoal.identity.message_body import Position
from shoal.storage.config import OutboxConfig
from shoal.storage.errors import (
    Fenced,
    MissingBatches,
    NotAReplay,
    NotStaged,
    OutboxFull,
    OutboxTooSmall,
    StoreDamaged,
    StoreError,
    StoreFormatUnknown,
)
from shoal.storage.key_values import KeyValueFile
from shoal.storage.outbox import Outbox
from shoal.storage.outbox_file import Attempt, ChunkPlace, Sending

OWNER = NodeId(bytes(20))
STREAM = StreamId("0x" + "ab" * 20 + "/out")
NOW_MS = 1_700_000_000_000
NOW_NS = NOW_MS * MS_NS


def opened(folder: Path, owner: NodeId = OWNER, **bounds: int) -> Outbox:
    return Outbox(folder, owner, SeededEntropy("outbox"), OutboxConfig(**bounds))


def stage(
    box: Outbox,
    rows: list[bytes],
    *,
    batch: int = 0,
    task: int = 0,
    chunk: int = 0,
    stream: int = 0,
    now_ns: int = NOW_NS,
    attempt: int = 0,
    query: str = "q",
) -> bool:
    at = ChunkPlace(query, 1, batch, task, attempt, chunk)
    return box.stage(at, {stream: [(1, row) for row in rows]}, now_ns)


def sent(box: Outbox, after: int = -1, now_ns: int = NOW_NS) -> Sending:
    (number,) = box.waiting()
    sending = box.begin(number, after, now_ns)
    assert sending is not None
    return sending


@pytest.fixture
def box(tmp_path: Path) -> Outbox:
    box = opened(tmp_path / "box")
    box.take_epoch("q", "r1", STREAM, False, NOW_NS)
    return box


def test_a_seal_gives_places_in_the_order_of_tasks_and_chunks(box: Outbox) -> None:
    stage(box, [b"d"], task=1)
    stage(box, [b"a", b"b"])
    stage(box, [b"c"], chunk=1)
    assert box.seal("q", 1, 0, [Attempt(1, 0, 1), Attempt(0, 0, 2)], NOW_NS).rows == 4
    first = sent(box)
    second = sent(box, first.place)
    third = sent(box, second.place)
    assert [part.rows for part in (first, second, third)] == [
        [(1, b"a"), (1, b"b")],
        [(1, b"c")],
        [(1, b"d")],
    ]
    assert (first.first, first.previous) == (Position(NOW_MS, 0), None)
    assert (second.first, second.previous) == (Position(NOW_MS, 2), Position(NOW_MS, 1))
    assert (third.first, third.previous) == (Position(NOW_MS, 3), Position(NOW_MS, 2))


def test_each_partition_of_the_stream_has_a_chain_from_its_beginning(box: Outbox) -> None:
    stage(box, [b"a"], stream=0)
    stage(box, [b"b"], task=1, stream=3)
    box.seal("q", 1, 0, [Attempt(0, 0, 1), Attempt(1, 0, 1)], NOW_NS)
    one, two = sent(box), sent(box, 0)
    assert (one.partition, two.partition, one.chain == two.chain) == (0, 3, True)
    assert one.first == two.first == Position(NOW_MS, 0)
    assert two.previous is None


def test_the_chain_goes_on_after_all_is_forgotten_but_its_head(tmp_path: Path) -> None:
    box = opened(tmp_path / "box")
    box.take_epoch("q", "r1", STREAM, False, NOW_NS)
    stage(box, [b"a", b"b"])
    box.seal("q", 1, 0, [Attempt(0, 0, 1)], NOW_NS)
    before = sent(box)
    box.done(before.query, before.place)
    assert (box.size_bytes, box.waiting()) == (0, [])
    box.close()
    box = opened(tmp_path / "box")
    assert box.seal("q", 1, 0, [Attempt(0, 0, 1)], NOW_NS).replayed
    assert not stage(box, [b"other rows of the same batch"])
    stage(box, [b"c"], batch=1)
    box.seal("q", 1, 1, [Attempt(0, 0, 1)], NOW_NS - S_NS)  # the clock was put back
    after = sent(box)
    assert (after.chain, after.previous) == (before.chain, Position(NOW_MS, 1))
    assert after.first == Position(NOW_MS, 2)


def test_what_was_not_sent_for_long_gets_a_new_time_and_what_may_have_been_keeps_it(
    box: Outbox,
) -> None:
    for task in range(3):
        stage(box, [b"a", b"b"], task=task)
    box.seal("q", 1, 0, [Attempt(task, 0, 1) for task in range(3)], NOW_NS)
    begun = sent(box)
    later_ns = NOW_NS + 3600 * S_NS
    assert sent(box, now_ns=later_ns) == begun, "somebody may have it"
    moved = sent(box, begun.place, later_ns)
    assert moved.first == Position(later_ns // MS_NS, 0)
    assert moved.previous == Position(NOW_MS, 1)
    back_ns = later_ns - 20 * S_NS  # behind the one before by this clock
    behind = sent(box, moved.place, back_ns)
    assert behind.first > moved.first
    assert behind.previous == Position(later_ns // MS_NS, 1)
    stage(box, [b"c"], batch=1)
    box.seal("q", 1, 1, [Attempt(0, 0, 1)], back_ns)
    assert sent(box, behind.place, back_ns).first > behind.first


@pytest.mark.parametrize("ahead_s", [3600, 30 * 86_400])
def test_a_chain_that_was_stamped_far_ahead_goes_on_under_the_next_name(
    tmp_path: Path, ahead_s: int
) -> None:
    box = opened(tmp_path / "box")
    box.take_epoch("q", "r1", STREAM, False, NOW_NS)
    stage(box, [b"a", b"b"])
    wrong_ns = NOW_NS + ahead_s * S_NS
    box.seal("q", 1, 0, [Attempt(0, 0, 1)], wrong_ns)
    before = sent(box, now_ns=wrong_ns)
    box.done(before.query, before.place)
    for batch in (1, 2):
        box.close()
        box = opened(tmp_path / "box")  # a crash in between changes nothing
        now_ns = NOW_NS + batch * S_NS
        stage(box, [b"c", b"d"], batch=batch)
        box.seal("q", 1, batch, [Attempt(0, 0, 1)], now_ns)
        after = sent(box, now_ns=now_ns)
        assert after.chain == before.chain + ".2"
        assert after.first == Position(now_ns // MS_NS, 0)
        assert after.previous == (None if batch == 1 else Position(NOW_MS + 1000, 1))
        box.done(after.query, after.place)
    box.close()


def test_what_was_sealed_far_ahead_and_not_sent_gets_a_new_time_in_its_chain(box: Outbox) -> None:
    stage(box, [b"a"])
    box.seal("q", 1, 0, [Attempt(0, 0, 1)], NOW_NS)
    first = sent(box)
    stage(box, [b"b"], batch=1)
    box.seal("q", 1, 1, [Attempt(0, 0, 1)], NOW_NS + 3600 * S_NS)
    stage(box, [b"c"], batch=2)
    box.seal("q", 1, 2, [Attempt(0, 0, 1)], NOW_NS + S_NS)
    second = sent(box, first.place, NOW_NS + S_NS)
    third = sent(box, second.place, NOW_NS + S_NS)
    assert first.chain == second.chain == third.chain
    assert [one.first for one in (second, third)] == [
        Position(NOW_MS + 1000, 0),
        Position(NOW_MS + 1000, 1),
    ]
    assert (second.previous, third.previous) == (first.first, second.first)


def test_what_may_have_been_sent_far_ahead_moves_when_nobody_has_it(box: Outbox) -> None:
    for task in range(2):
        stage(box, [b"a", b"b"], task=task)
    wrong_ns = NOW_NS + 3600 * S_NS
    box.seal("q", 1, 0, [Attempt(task, 0, 1) for task in range(2)], wrong_ns)
    one = sent(box, now_ns=wrong_ns)
    two = sent(box, one.place, wrong_ns)
    assert sent(box) == one, "somebody may have it"
    moved = box.move(one.query, one.place, NOW_NS)
    assert (moved.chain, moved.first) == (one.chain + ".2", Position(NOW_MS, 0))
    assert sent(box) == moved
    second = box.move(two.query, two.place, NOW_NS)
    assert (second.chain, second.previous) == (moved.chain, Position(NOW_MS, 1))
    assert second.rows == two.rows


def test_a_restored_outbox_sends_nothing_under_another_place_than_its_original_did(
    tmp_path: Path,
) -> None:
    """The original sent it after the backup; storage nodes know it by its place."""
    box = opened(tmp_path / "box")
    box.take_epoch("q", "r1", STREAM, False, NOW_NS)
    for task in range(3):
        stage(box, [b"a", b"b"], task=task)
    box.seal("q", 1, 0, [Attempt(task, 0, 1) for task in range(3)], NOW_NS)
    done = sent(box)
    box.done(done.query, done.place)
    box.close()
    shutil.copytree(tmp_path / "box", tmp_path / "copy")
    box = opened(tmp_path / "box")
    second = sent(box)
    third = sent(box, second.place)
    box.close()
    later_ns = NOW_NS + 24 * 3600 * S_NS
    box = opened(tmp_path / "copy")
    assert sent(box, now_ns=later_ns) == second
    assert sent(box, second.place, later_ns) == third
    stage(box, [b"c"], batch=1)
    box.seal("q", 1, 1, [Attempt(0, 0, 1)], later_ns)
    new = sent(box, third.place, later_ns)
    assert (new.first, new.previous) == (Position(later_ns // MS_NS, 0), Position(NOW_MS, 5))
    box.close()


def test_a_query_keeps_its_stream_and_names_are_checked(box: Outbox) -> None:
    with pytest.raises(UsageError, match="start it with a new checkpoint"):
        box.take_epoch("q", "r2", StreamId(STREAM + "/other"), False, NOW_NS)
    with pytest.raises(UsageError, match="1 to 100 ASCII"):
        box.take_epoch("ü", "r1", STREAM, False, NOW_NS)
    with pytest.raises(NotFound, match="take an epoch"):
        box.seal("nobody", 1, 0, [], NOW_NS)
    with pytest.raises(UsageError, match="two attempts of one partition"):
        box.seal("q", 1, 0, [Attempt(0, 0, 0), Attempt(0, 1, 0)], NOW_NS)
    box.take_epoch("q", "r2", STREAM, False, NOW_NS)
    with pytest.raises(Fenced, match=r"epoch 2 \(run r2\), this is epoch 1"):
        stage(box, [b"a"])


def test_queries_are_bounded(tmp_path: Path) -> None:
    box = opened(tmp_path / "box", queries_max=2)
    for query in "ab":
        box.take_epoch(query, "r", STREAM, False, NOW_NS)
    with pytest.raises(UsageError, match="2 queries are known"):
        box.take_epoch("c", "r", STREAM, False, NOW_NS)
    assert box.take_epoch("a", "r2", STREAM, False, NOW_NS) == 2


def test_a_full_outbox_has_room_again_when_something_is_done_with(tmp_path: Path) -> None:
    box = opened(tmp_path / "box", size_bytes_max=250)
    box.take_epoch("q", "r1", STREAM, False, NOW_NS)
    stage(box, [b"x" * 150])
    box.seal("q", 1, 0, [Attempt(0, 0, 1)], NOW_NS)
    with pytest.raises(OutboxFull, match="try again"):
        stage(box, [b"y" * 150], batch=1)
    with pytest.raises(OutboxTooSmall, match="raise megabytes_max"):
        stage(box, [b"y" * 300], batch=1)
    sending = sent(box)
    box.done(sending.query, sending.place)
    assert stage(box, [b"y" * 150], batch=1)


def test_what_does_not_count_goes_with_its_batch_or_its_run(box: Outbox) -> None:
    for task in range(5):
        stage(box, [b"speculative"], task=task)
    assert box.size_bytes
    box.seal("q", 1, 0, [], NOW_NS)
    assert box.size_bytes == 0
    stage(box, [b"of the next batch"], batch=1)
    assert box.size_bytes
    box.take_epoch("q", "r2", STREAM, False, NOW_NS)
    assert box.size_bytes == 0, "what an old driver staged is of no use either"


def test_what_a_dead_job_left_is_swept_up_in_steps(tmp_path: Path) -> None:
    box = opened(tmp_path / "box", sweep_max=2)
    box.take_epoch("q", "r1", STREAM, False, NOW_NS)
    for task in range(5):
        stage(box, [b"left behind"], task=task)
    steps = 1
    while box.sweep(NOW_NS + 2 * box.config.staged_ns):
        steps += 1
    assert (steps, box.size_bytes) == (3, 0)


# Replays


def sealed_up_to(box: Outbox, last: int, of: Fingerprint) -> None:
    for batch in range(last + 1):
        stage(box, [b"row of %d" % batch], batch=batch)
        box.seal("q", 1, batch, [Attempt(0, 0, 1)], NOW_NS, of)


def test_an_older_batch_is_an_error_and_not_a_replay(box: Outbox) -> None:
    """A checkpoint that was restored gives known numbers to new rows: they would be lost."""
    sealed_up_to(box, 5, Fingerprint(1, "d", "", '{"v":1,"p":{}}'))
    for attempt in (
        lambda: stage(box, [b"new"], batch=3),
        lambda: box.seal("q", 1, 3, [], NOW_NS, Fingerprint(1, "d")),
    ):
        with pytest.raises(NotAReplay, match=r"batch 3 of query q is older .* 5, .*") as caught:
            attempt()
        assert "Restore the newest checkpoint" in str(caught.value)
        assert 'with startingOffsets = {"v":1,"p":{}}' in str(caught.value)
    assert box.query_state("q").source == '{"v":1,"p":{}}'
    assert stage(box, [b"new"], batch=6)


def test_batches_that_are_missing_are_told(box: Outbox) -> None:
    """An outbox that was restored from an old copy may lack rows that were never published."""
    sealed_up_to(box, 5, Fingerprint(1, "d", "", '{"v":1,"p":{}}'))
    with pytest.raises(MissingBatches, match=r"the last one .* is 5: the outbox was restored"):
        stage(box, [b"new"], batch=7)
    with pytest.raises(MissingBatches, match=r'ended at {"v":1,"p":{}}'):
        box.seal("q", 1, 7, [], NOW_NS)


def test_a_query_that_is_not_known_here_begins_with_its_first_batch(box: Outbox) -> None:
    """The outbox was made anew, or its copy is older than the query: what was sealed in the one
    before may not have been published."""
    with pytest.raises(MissingBatches, match="none of it was sealed here: the outbox was restored"):
        stage(box, [b"new"], batch=7)
    with pytest.raises(MissingBatches, match=r"new checkpoint where its rows are missing$"):
        box.seal("q", 1, 1, [], NOW_NS)
    assert stage(box, [b"new"], batch=0)


@pytest.mark.parametrize(
    ("sealed", "comes", "replayed"),
    [
        (("a", "", ""), ("a", "", ""), True),
        (("a", "", ""), ("b", "", ""), False),
        (("a", "p1", "s1"), ("a", "p2", "s1"), True),
        (("a", "p1", "s1"), ("a", "p2", "s2"), False),
        (("a", "p1", "s1"), ("a", "", ""), True),
        (("a", "p1", "s1"), ("b", "", ""), False),
        (("a", "p1", "s1"), ("b", "p2", "s1"), False),
        (("a", "p1", "s1"), ("b", "p1", "s1"), True),  # its rows are other ones each time it runs
    ],
)
def test_the_last_number_again_has_to_be_the_same_batch(
    tmp_path: Path,
    sealed: tuple[str, str, str],
    comes: tuple[str, str, str],
    replayed: bool,
) -> None:
    box = opened(tmp_path / "box")
    box.take_epoch("q", "r1", STREAM, False, NOW_NS)
    sealed_up_to(box, 1, Fingerprint(1, *sealed))
    box.close()
    box = opened(tmp_path / "box")
    box.take_epoch("q", "r2", STREAM, False, NOW_NS)
    at = ChunkPlace("q", 2, 1, 0, 9, 0)
    assert not box.stage(at, {0: [(1, b"again")]}, NOW_NS)
    if replayed:
        answer = box.seal("q", 2, 1, [], NOW_NS, Fingerprint(1, *comes))
        assert (answer.replayed, answer.changed) == (True, sealed[0] != comes[0])
    else:
        with pytest.raises(NotAReplay, match="batch 1 of query q was sealed with 1 rows"):
            box.seal("q", 2, 1, [], NOW_NS, Fingerprint(1, *comes))
    assert box.waiting_parts() == 2
    box.close()


# Room


def room_for(tmp_path: Path, size_bytes_max: int, *queries: str) -> Outbox:
    box = opened(tmp_path / "box", size_bytes_max=size_bytes_max)
    for query in queries:
        box.take_epoch(query, "r1", STREAM, False, NOW_NS)
    return box


def test_a_job_that_failed_gives_back_all_that_its_tasks_handed_in(tmp_path: Path) -> None:
    box = room_for(tmp_path, 1_000, "q", "p")
    for task in range(4):
        stage(box, [b"x" * 190], task=task)
    box.discard("q", 1, 0)
    assert box.size_bytes == 0
    for late in (0, 9):  # a task that has not heard of it yet
        with pytest.raises(Fenced, match="given up by its driver"):
            stage(box, [b"late"], attempt=late)
    assert stage(box, [b"x" * 190], query="p")


def test_two_writers_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """Each needs more than half of the room: one is completed, then the other."""
    box = room_for(tmp_path, 1_000, "a", "b")
    stage(box, [b"x" * 90], query="a")  # both fit into what all share
    stage(box, [b"x" * 20], query="b")
    for chunk in range(1, 6):
        stage(box, [b"x" * 100], query="a", chunk=chunk)
        with pytest.raises(OutboxFull) as caught:
            stage(box, [b"y" * 100], query="b", chunk=1, now_ns=NOW_NS + 3 * S_NS)
    said = str(caught.value)
    assert "held by batch 0 of query a (" in said
    assert "3 s ago" in said
    assert '{"query": "a", "epoch": 1, "batch": 0} gives the room back' in said
    assert "storage" not in said
    holder = box.holder()
    assert holder is not None
    assert (holder.query, holder.batch) == ("a", 0)
    box.seal("a", 1, 0, [Attempt(0, 0, 6)], NOW_NS)
    for chunk in range(1, 4):
        stage(box, [b"y" * 100], query="b", chunk=chunk)
    with pytest.raises(OutboxFull, match="sealed and not yet published") as full:
        stage(box, [b"y" * 100], query="b", chunk=4)
    assert full.value.publishing
    sending, place = None, -1
    while box.waiting():
        sending = sent(box, place)
        box.done(sending.query, sending.place)
        place = sending.place
    for chunk in range(1, 6):
        stage(box, [b"y" * 100], query="b", chunk=chunk)
    assert box.seal("b", 1, 0, [Attempt(0, 0, 6)], NOW_NS).rows == 6
    assert box.holder() is None


def test_small_batches_go_on_beside_a_large_one_and_after_a_restart(tmp_path: Path) -> None:
    box = room_for(tmp_path, 1_000, "large", "small", "other")
    for chunk in range(8):
        stage(box, [b"x" * 100], query="large", chunk=chunk)
    for batch in range(5):
        stage(box, [b"y" * 50], query="small", batch=batch)
        box.seal("small", 1, batch, [Attempt(0, 0, 1)], NOW_NS)
        sending = box.begin(box.waiting()[0], -1, NOW_NS)
        assert sending is not None
        box.done(sending.query, sending.place)
    box.close()
    box = opened(tmp_path / "box", size_bytes_max=1_000)
    with pytest.raises(OutboxFull, match="of query large"):
        stage(box, [b"z" * 200], query="other")
    box.discard("large", 1, 0)
    assert stage(box, [b"z" * 200], query="other")


def test_attempts_of_a_task_count_once(tmp_path: Path) -> None:
    """The third attempt of a job whose rows fit; what Spark commits is what is sealed."""
    box = room_for(tmp_path, 1_000, "q")
    for attempt in range(5):
        for chunk in range(4):
            rows = [b"%d %d " % (attempt, chunk) + b"x" * 90]
            assert stage(box, rows, attempt=attempt, chunk=chunk)
    assert box.size_bytes < 450
    on_disk = sum(1 for _ in box._file.read(lambda txn: list(txn.cursor(db=box._file.rows))))
    assert on_disk == 8, "older attempts are gone"
    with pytest.raises(NotStaged, match="newer attempts took its place"):
        stage(box, [b"late"], attempt=1, chunk=4)
    assert box.seal("q", 1, 0, [Attempt(0, 3, 4)], NOW_NS).rows == 4
    assert sent(box).rows[0][1].startswith(b"3 0 ")
    assert box._file.read(lambda txn: txn.stat(box._file.rows))["entries"] == 4


def test_of_two_copies_of_a_task_either_may_come_first(tmp_path: Path) -> None:
    """Speculation: both go on to their end, and the one that Spark takes is the older one."""
    box = room_for(tmp_path, 1_000, "q")
    for chunk in range(3):
        stage(box, [b"slow %d" % chunk], attempt=1, chunk=chunk)
        stage(box, [b"quick %d" % chunk], attempt=2, chunk=chunk)
    assert box.seal("q", 1, 0, [Attempt(0, 1, 3)], NOW_NS).rows == 3
    assert sent(box).rows == [(1, b"slow 0")]
    assert box._file.read(lambda txn: txn.stat(box._file.rows))["entries"] == 3


def test_a_task_that_failed_takes_back_its_own_rows_only(tmp_path: Path) -> None:
    box = room_for(tmp_path, 1_000, "q")
    stage(box, [b"x" * 100], task=0)
    stage(box, [b"x" * 100], task=1, attempt=1)
    left = box.size_bytes
    box.discard_attempt("q", 1, 0, 1, 1)
    assert 0 < box.size_bytes < left
    stage(box, [b"y"], task=1, attempt=2)
    assert box.seal("q", 1, 0, [Attempt(0, 0, 1), Attempt(1, 2, 1)], NOW_NS).rows == 2


def test_what_a_dead_job_staged_goes_by_age_and_a_batch_write_is_forgotten(tmp_path: Path) -> None:
    box = opened(tmp_path / "box", staged_ns=10 * S_NS, once_ns=100 * S_NS)
    box.take_epoch("q", "q", STREAM, True, NOW_NS)
    box.take_epoch("stays", "r", STREAM, False, NOW_NS)
    stage(box, [b"a"])
    box.sweep(NOW_NS + 9 * S_NS)
    assert box.size_bytes
    box.sweep(NOW_NS + 11 * S_NS)
    assert not box.size_bytes
    assert [query.query for query in box.state()] == ["q", "stays"]
    box.sweep(NOW_NS + 101 * S_NS)
    assert [query.query for query in box.state()] == ["stays"]


def test_what_a_dead_job_staged_while_the_clock_was_ahead_goes_as_soon(tmp_path: Path) -> None:
    box = opened(tmp_path / "box", staged_ns=10 * S_NS)
    box.take_epoch("q", "q", STREAM, True, NOW_NS)
    stage(box, [b"a"], now_ns=NOW_NS + 30 * 86_400 * S_NS)
    for _ in range(2):
        box.close()
        box = opened(tmp_path / "box", staged_ns=10 * S_NS)
        box.sweep(NOW_NS)
        assert box.size_bytes
        box.sweep(NOW_NS + 10 * S_NS)
        assert box.size_bytes
    box.sweep(NOW_NS + 11 * S_NS)
    assert not box.size_bytes
    box.close()


def test_a_job_that_takes_long_keeps_what_its_first_tasks_staged(tmp_path: Path) -> None:
    """Also over a restart: while some task of the batch hands in, its job is not dead."""
    box = opened(tmp_path / "box", staged_ns=10 * S_NS, sweep_max=1)
    box.take_epoch("q", "r", STREAM, False, NOW_NS)
    for task in range(4):
        stage(box, [b"%d" % task], task=task, now_ns=NOW_NS + 8 * task * S_NS)
    for _ in range(2):
        while box.sweep(NOW_NS + 33 * S_NS):
            pass
        box.close()
        box = opened(tmp_path / "box", staged_ns=10 * S_NS, sweep_max=1)
    size_bytes = box.size_bytes
    while box.sweep(NOW_NS + 35 * S_NS):
        pass
    assert (size_bytes > 0, box.size_bytes) == (True, 0), "and then it is"
    for task in range(2):
        stage(box, [b"%d" % task], task=task, now_ns=NOW_NS + (40 + 8 * task) * S_NS)
    while box.sweep(NOW_NS + 55 * S_NS):
        pass
    sealed = box.seal("q", 1, 0, [Attempt(0, 0, 1), Attempt(1, 0, 1)], NOW_NS + 55 * S_NS)
    assert sealed.rows == 2
    box.close()


def test_files_of_others_and_damage_are_refused_by_name(tmp_path: Path) -> None:
    opened(tmp_path / "box").close()
    with pytest.raises(StoreError, match="belongs to node"):
        opened(tmp_path / "box", NodeId(bytes(19) + b"\1"))
    environment = lmdb.open(str(tmp_path / "old"), max_dbs=8)
    with environment.begin(write=True) as txn:
        meta = environment.open_db(b"outbox-meta", txn=txn)
        txn.put(b"format", bytes([0, 0, 0, 1]), db=meta)
        txn.put(b"owner", OWNER, db=meta)
    environment.close()
    with pytest.raises(StoreFormatUnknown, match="has format 1, this Shoal reads 2 alone"):
        opened(tmp_path / "old")
    KeyValueFile(tmp_path / "topics", OWNER).close()
    with pytest.raises(StoreFormatUnknown, match="not an outbox"):
        opened(tmp_path / "topics")
    box = opened(tmp_path / "box")
    box.take_epoch("q", "r1", STREAM, False, NOW_NS)
    stage(box, [b"unlikely content"])
    box.close()
    file = tmp_path / "box" / "data.mdb"
    file.write_bytes(file.read_bytes().replace(b"unlikely content", b"another content!"))
    box = opened(tmp_path / "box")
    box.seal("q", 1, 0, [Attempt(0, 0, 1)], NOW_NS)
    with pytest.raises(StoreDamaged, match="not as it was written"):
        sent(box)


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = {path!r}
from tests.storage.test_outbox import NOW_NS, STREAM, Attempt, opened, stage
box = opened(Path({folder!r}))
box.take_epoch("q", "r1", STREAM, False, NOW_NS)
for batch in range(1000):
    stage(box, [b"row %d" % batch], batch=batch)
    box.seal("q", 1, batch, [Attempt(0, 0, 1)], NOW_NS)
    print(batch, flush=True)
"""


def test_what_was_said_to_be_sealed_is_there_after_sigkill(tmp_path: Path) -> None:
    script = KILLED.format(path=sys.path, folder=str(tmp_path / "box"))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = [int(process.stdout.readline()) for _ in range(20)][-1]
        os.kill(process.pid, signal.SIGKILL)
        said = max([said, *map(int, process.stdout.read().split())])
    box = opened(tmp_path / "box")
    last = box.query_state("q").batch
    assert said <= last <= said + 1
    rows, place = [], -1
    for _ in range(last + 1):
        sending = sent(box, place)
        rows += sending.rows
        place = sending.place
    assert rows == [(1, b"row %d" % batch) for batch in range(last + 1)]
