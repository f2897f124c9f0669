"""Two sides of one link, which loses and delays what Hypothesis likes: in the end they agree."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.base.units import S_NS
from shoal.kernel.records import Delivered, Published, ReceivedFirst, Rejected, Sent
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.member.neighbours import State
from tests.support.streams import of_kind
from tests.support.streams_pair import End, Pair

CONFIG = NodeConfig()


def linked(pair: Pair) -> tuple[bool, bool]:
    return pair.alice.state is State.ACTIVE, pair.bob.state is State.ACTIVE


def test_two_nodes_link_whoever_is_told_first() -> None:
    pair = Pair()
    pair.instruct(pair.alice, linked=True)
    pair.settle(2 * S_NS)
    assert linked(pair) == (False, False)  # Bob has not been told: nothing is sent to him
    pair.instruct(pair.bob, linked=True)
    pair.settle(2 * S_NS)
    assert linked(pair) == (True, True)


# What may happen, in any order. Whatever does not fit the moment does nothing.
OPS: dict[str, Callable[[Pair, End], object]] = {
    "link": lambda pair, end: pair.instruct(end, linked=True),
    "unlink": lambda pair, end: pair.instruct(end, linked=False),
    "deliver": Pair.deliver,
    "deliver twice": lambda pair, end: pair.deliver(end) and pair.deliver(end),
    "lose": Pair.lose,
    "connect": Pair.connect,
    "refuse": Pair.refuse,
    "hang up": Pair.hang_up,
    "tick": lambda pair, end: pair.tick(),
    "publish": Pair.publish,
    "leave and join": Pair.leave_and_join,
}
ops = st.lists(st.tuples(st.sampled_from(sorted(OPS)), st.booleans()), max_size=60)
AGREED_NS = CONFIG.open_timeout_ns + CONFIG.retry_ns + CONFIG.open_timeout_ns


def apply(pair: Pair, steps: list[tuple[str, bool]]) -> None:
    for name, is_alice in steps:
        OPS[name](pair, pair.alice if is_alice else pair.bob)


@given(ops, st.booleans())
@settings(max_examples=1000)
def test_after_one_last_word_from_the_tracker_both_sides_agree(
    steps: list[tuple[str, bool]], last: bool
) -> None:
    pair = Pair()
    apply(pair, steps)
    pair.instruct(pair.alice, linked=last)
    pair.instruct(pair.bob, linked=last)
    pair.settle(AGREED_NS)
    if last:
        assert linked(pair) == (True, True)
    else:
        assert (pair.alice.state, pair.bob.state) == (None, None)


lossless_ops = st.lists(
    st.tuples(
        st.sampled_from(["link", "unlink", "deliver", "deliver twice", "connect", "publish"]),
        st.booleans(),
    ),
    max_size=60,
)


@given(lossless_ops, st.booleans())
@settings(max_examples=500)
def test_without_losses_it_takes_no_timer_to_agree_on_a_link(
    steps: list[tuple[str, bool]], alice_first: bool
) -> None:
    pair = Pair()
    apply(pair, steps)
    ends = (pair.alice, pair.bob) if alice_first else (pair.bob, pair.alice)
    for end in ends:
        pair.instruct(end, linked=True)
    pair.drain()
    assert linked(pair) == (True, True)


@given(st.lists(st.tuples(st.sampled_from(["deliver", "connect", "publish"]), st.booleans())))
@settings(max_examples=500)
def test_all_that_was_sent_is_taken_though_the_tracker_ends_the_link_at_any_moment(
    steps: list[tuple[str, bool]],
) -> None:
    pair = Pair()
    for end in (pair.alice, pair.bob):
        pair.instruct(end, linked=True)
    apply(pair, steps)
    for end in (pair.alice, pair.bob):
        pair.instruct(end, linked=False)
    pair.drain()
    for end, other in ((pair.alice, pair.bob), (pair.bob, pair.alice)):
        arrived = {record.message for record in of_kind(other.records, ReceivedFirst)}
        assert {record.message for record in of_kind(end.records, Sent)} == arrived
        assert not of_kind(other.records, Rejected)


def test_a_publisher_that_leaves_at_once_is_heard_though_the_tracker_was_faster() -> None:
    pair = Pair()
    for end in (pair.alice, pair.bob):
        pair.instruct(end, linked=True)
    pair.connect(pair.alice)
    pair.deliver(pair.alice)  # Bob's Open; hers is on its way to him
    assert linked(pair) == (True, False)
    pair.publish(pair.alice)
    pair.leave_and_join(pair.alice)
    pair.instruct(pair.bob, linked=False)
    pair.drain()
    (published,) = of_kind(pair.alice.records, Published)
    assert [d.message for d in of_kind(pair.bob.records, Delivered)] == [published.message]
    assert pair.bob.state is None, "and let go: she has said Close"


@given(ops)
def test_what_flows_after_the_last_word_arrives(steps: list[tuple[str, bool]]) -> None:
    pair = Pair()
    apply(pair, steps)
    for end in (pair.alice, pair.bob):
        pair.instruct(end, linked=True)
    pair.settle(AGREED_NS)
    for end, other in ((pair.alice, pair.bob), (pair.bob, pair.alice)):
        end.records.clear()
        other.records.clear()
        pair.publish(end)
        # What a publisher lost by leaving is asked for first, and then given up: these nodes have
        # no machine to ask storage with, and wait for it all the same.
        pair.settle(5 * S_NS + CONFIG.storage_wait_ns)
        (published,) = of_kind(end.records, Published)
        assert [d.message for d in of_kind(other.records, Delivered)] == [published.message]
