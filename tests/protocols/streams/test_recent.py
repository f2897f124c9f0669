"""What a node keeps of late: what is known by its bytes is what is kept, and nothing else."""

from __future__ import annotations

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from shoal.base.ids import INT63_MAX
from shoal.base.units import MS_NS
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.recent import MARK_NS, Known, RecentMessages
from tests.support.streams import NOW_MS, NOW_NS, message_id, placed

TIGHT = NodeConfig(recent_bytes_max=40, recent_ns=500 * MS_NS)


def kept_in(recent: RecentMessages) -> Known:
    chains = [placed(message_id(chain=name)).chain for name in "cd"]
    found = [recent.between(of, (0, 0), (INT63_MAX, 0)) for of in chains]
    return {signed: recent._known[signed] for signed in chain.from_iterable(found)}


@given(
    st.lists(
        st.tuples(st.sampled_from("cd"), st.integers(0, 300), st.integers(1, 20), st.integers(0, 9))
    )
)
def test_what_is_kept_is_known_and_what_is_dropped_is_not(
    messages: list[tuple[str, int, int, int]],
) -> None:
    elsewhere = {b"of another stream": placed(message_id(chain="other"))}
    known = dict(elsewhere)
    recent = RecentMessages(TIGHT, known)
    now_ns = NOW_NS
    came_ns: dict[bytes, int] = {}
    for number, (name, waited_ms, size_bytes, late_ms) in enumerate(messages):
        now_ns += waited_ms * MS_NS
        id = message_id(number, chain=name, timestamp_ms=NOW_MS + 10 * number - 30 * late_ms)
        message = placed(id, signed=number.to_bytes(2, "big") + bytes(size_bytes))
        recent.add(message, now_ns)
        came_ns[message.signed] = now_ns
        kept = kept_in(recent)
        assert known == elsewhere | kept
        assert message.signed in kept
        assert sum(map(len, kept)) <= 40
        assert all(now_ns - came_ns[signed] <= TIGHT.recent_ns + MARK_NS for signed in kept)
        for head in recent.heads():
            assert head.number == max(m.number for m in kept.values() if m.chain == head.chain)
    recent.clear()
    assert known == elsewhere
    assert not kept_in(recent)
