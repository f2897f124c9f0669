"""What a node keeps of late: the last of it, within its bounds, and nothing else."""

from __future__ import annotations

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from shoal.base.ids import INT63_MAX
from shoal.base.units import MS_NS
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.delivery.replay_buffer import SPAN_NS, SPANS_MIN, RecentMessages
from tests.support.streams import NOW_MS, NOW_NS, message_id, placed

LARGEST = 92
TIGHT = NodeConfig(recent_bytes_max=400, recent_ns=5 * SPAN_NS)


def kept_in(recent: RecentMessages) -> list[bytes]:
    chains = [placed(message_id(chain=name)).chain for name in "cd"]
    found = [recent.between(of, (0, 0), (INT63_MAX, 0)) for of in chains]
    return list(chain.from_iterable(found))


@given(
    st.lists(
        st.tuples(
            st.sampled_from("cd"),
            st.integers(0, 1500),
            st.integers(1, LARGEST - 2),
            st.integers(0, 9),
        )
    )
)
def test_the_last_messages_are_kept_within_bytes_and_age(
    messages: list[tuple[str, int, int, int]],
) -> None:
    recent = RecentMessages(TIGHT)
    now_ns = NOW_NS
    came = {}
    told = []
    for number, (name, waited_ms, size_bytes, late_ms) in enumerate(messages):
        now_ns += waited_ms * MS_NS
        id = message_id(number, chain=name, timestamp_ms=NOW_MS + 10 * number - 30 * late_ms)
        message = placed(id, signed=number.to_bytes(2, "big") + bytes(size_bytes))
        recent.add(message, now_ns)
        came[message.signed] = (message, now_ns)
        kept = kept_in(recent)
        assert sorted(kept) == list(came)[-len(kept) :]  # the last ones, each once
        assert sum(map(len, kept)) <= 400
        assert all(now_ns - came[signed][1] <= TIGHT.recent_ns + SPAN_NS for signed in kept)
        # Not much less than fits: what is dropped makes room for a span of about that size.
        dropped = [signed for signed in came if signed not in kept]
        if dropped and now_ns - came[dropped[-1]][1] < TIGHT.recent_ns - SPAN_NS:
            assert sum(map(len, kept)) > 400 - 400 // SPANS_MIN - LARGEST
        # Another body under the id of a message that is kept is noticed; of any other it is not.
        for signed, (other, _) in came.items():
            forged = placed(other.id, signed=signed + b"another body" * 9)
            assert recent.contradicted(forged) == (signed if signed in kept else None)
        before_ns = now_ns - SPAN_NS
        told += recent.since(before_ns)
        quiet = {m.head for m, came_ns in came.values() if came_ns + SPAN_NS <= before_ns}
        of_chain = {m.chain: m.head for m, _ in came.values() if m.head in quiet}
        assert quiet & {came[signed][0].head for signed in kept} <= set(told)
        assert set(of_chain.values()) <= set(told), "also if they are not kept any more"
    assert len(set(told)) == len(told), "told once"


def test_a_settled_id_is_forgotten_with_its_message() -> None:
    recent = RecentMessages(TIGHT)
    message = placed(message_id(), signed=b"first")
    recent.add(message, NOW_NS)
    forged = placed(message_id(), signed=bytes(100))
    assert recent.contradicted(forged) == b"first"
    recent.settle(message)
    assert recent.contradicted(forged) is None
    recent.add(placed(message_id(1), signed=b"later"), NOW_NS + 9 * SPAN_NS)
    assert not recent._settled
