"""Partitions: the one asked for, that of a key, or the next in turn; and the same for ever."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import UsageError
from shoal.base.ids import StreamId
from shoal.config.sections import StreamSettings
from shoal.config.stream_settings import Terms
from shoal.node import NetworkFile
from shoal.node.streams.message import Partitions, partition_of
from tests.node.network import Town, contents, in_town, nothing_more, take

OWNER = "0x" + "ab" * 20
FOUR = StreamId(f"{OWNER}/four")
ONE = StreamId(f"{OWNER}/one")
KEYS = st.text(st.characters(codec="utf-8")) | st.binary() | st.integers()


def partitions() -> Partitions:
    return Partitions(Terms(NetworkFile(streams=(StreamSettings(FOUR, partitions=4),))).partitions)


# The hash


@pytest.mark.parametrize(
    ("key", "of_100", "of_7"),
    [
        ("", 52, 1),
        (b"", 52, 1),
        ("vehicle-12", 68, 6),
        ("12", 52, 1),
        (12, 52, 1),
        (-1, 80, 4),
        (2**80, 31, 6),
        ("Jyväskylä", 53, 5),
        (b"\x00\xff", 29, 2),
    ],
)
def test_a_key_goes_where_it_has_always_gone(key: Any, of_100: int, of_7: int) -> None:
    # Never to be changed: stored messages of a key lie where these numbers say.
    assert (partition_of(key, 100), partition_of(key, 7)) == (of_100, of_7)


@given(st.binary(), st.integers(1, 100))
def test_it_is_the_documented_hash(key: bytes, count: int) -> None:
    assert partition_of(key, count) == int(hashlib.sha256(key).hexdigest()[:16], 16) % count


@given(KEYS, st.integers(1, 100))
def test_every_key_has_a_partition_that_exists(key: Any, count: int) -> None:
    assert 0 <= partition_of(key, count) < count


@given(st.text(st.characters(codec="utf-8")), st.integers(), st.integers(1, 100))
def test_text_and_numbers_are_the_bytes_that_people_read(text: str, number: int, n: int) -> None:
    assert partition_of(text, n) == partition_of(text.encode(), n)
    assert partition_of(number, n) == partition_of(str(number), n)


def test_keys_spread_evenly() -> None:
    counts = Counter(partition_of(number, 4) for number in range(4000))
    assert all(900 < counts[partition] < 1100 for partition in range(4))


@pytest.mark.parametrize("key", [1.5, True, None, ("a",), bytearray(b"a")])
def test_what_is_no_key_is_refused(key: Any) -> None:
    with pytest.raises(UsageError, match="give a str, bytes or a whole number"):
        partition_of(key, 4)
    with pytest.raises(UsageError, match=r"is no text .*: give bytes"):
        partition_of("\ud800", 4)


# The choice


def test_without_a_choice_partitions_take_turns_in_each_stream() -> None:
    chosen = partitions()
    assert [chosen.choose(FOUR, None, None) for _ in range(6)] == [0, 1, 2, 3, 0, 1]
    assert [chosen.choose(ONE, None, None) for _ in range(3)] == [0, 0, 0]
    chosen.choose(FOUR, "a key takes no turn", None)
    chosen.choose(FOUR, None, 3)
    assert chosen.choose(FOUR, None, None) == 2


def test_a_partition_that_was_asked_for_is_taken_and_so_is_a_key_s() -> None:
    chosen = partitions()
    assert [chosen.choose(FOUR, None, number) for number in (3, 3, 0)] == [3, 3, 0]
    assert chosen.choose(FOUR, 12, None) == partition_of(12, 4)
    assert chosen.choose(ONE, 12, None) == 0


@pytest.mark.parametrize("partition", [-1, 4, 100, True, "0", 1.0])
def test_a_partition_that_is_not_there_is_refused_with_a_remedy(partition: Any) -> None:
    problem = r"has partitions 0\.\.3; more are set by its owner: .*\[\[streams\]\]"
    with pytest.raises(UsageError, match=problem) as caught:
        partitions().choose(FOUR, None, partition)
    assert str(caught.value).startswith(f"partition {partition!r}: {FOUR} ")
    with pytest.raises(UsageError, match=problem):
        partitions().chosen(FOUR, [0, partition])


def test_a_key_and_a_partition_are_one_too_many() -> None:
    with pytest.raises(UsageError, match="both a key and a partition: give one"):
        partitions().choose(FOUR, "key", 0)


def test_a_subscriber_names_some_or_all() -> None:
    chosen = partitions()
    assert chosen.chosen(FOUR, None) is None
    assert chosen.chosen(FOUR, (0, 2, 2)) == frozenset((0, 2))
    assert chosen.chosen(FOUR, 3) == frozenset((3,))
    with pytest.raises(UsageError, match="name at least one"):
        chosen.chosen(FOUR, ())


# Through the API


def test_subscribers_get_their_partitions_in_order_and_nothing_else() -> None:
    async def scenario(town: Town) -> None:
        one, two = await town.move_in(2, partitions=4)
        stream = await one.create_stream("/x")
        other = await two.open_stream(stream.id)
        assert stream.partitions == 4
        async with (
            other.subscribe() as everything,
            other.subscribe(partitions=(0, 2)) as some,
            other.subscribe(partitions=partition_of("bus 7", 4)) as of_key,
        ):
            ids = [await stream.publish(number) for number in range(8)]
            assert [id.partition for id in ids] == [0, 1, 2, 3, 0, 1, 2, 3]
            got = await take(everything, 8)
            assert sorted(contents(got)) == list(range(8))
            for partition in range(4):
                mine = [m.content for m in got if m.id.partition == partition]
                assert mine == [partition, partition + 4]
            assert sorted(contents(await take(some, 4))) == [0, 2, 4, 6]
            keyed = [await stream.publish(n, key="bus 7") for n in range(3)]
            assert {id.partition for id in keyed} == {partition_of("bus 7", 4)}
            assert contents((await take(of_key, 5))[2:]) == [0, 1, 2]
            await nothing_more(of_key)

    in_town(scenario)


def test_a_gap_is_told_to_those_who_want_its_partition() -> None:
    from tests.node.test_subscription import arrived

    async def scenario(town: Town) -> None:
        (node,) = await town.move_in(1, partitions=2)
        stream = await node.create_stream("/x")
        async with stream.subscribe(partitions=0) as mine, stream.subscribe(partitions=1) as other:
            for subscription in (mine, other):
                subscription.push(arrived(1, gap_before=True))  # of partition 0
            (message,) = await take(mine, 1)
            assert message.gap_before is not None
            await stream.publish("later", partition=1)
            (message,) = await take(other, 1)
            assert (message.content, message.gap_before) == ("later", None)

    in_town(scenario)
