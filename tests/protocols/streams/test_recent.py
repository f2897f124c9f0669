"""What a node keeps of late: what is known by its bytes is what is kept, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.base.ids import MessageId
from shoal.base.units import MS_NS
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.recent import RecentMessages
from tests.support.streams import NOW_MS, NOW_NS, message_id

TIGHT = NodeConfig(recent_bytes_max=40, recent_ns=50 * MS_NS)


def kept_in(recent: RecentMessages) -> dict[bytes, MessageId]:
    return {
        signed: message_id(chain=chain, timestamp_ms=number[0])
        for (_, _, chain), messages in recent._chains.items()
        for number, signed in messages.items()
    }


@given(st.lists(st.tuples(st.sampled_from("cd"), st.integers(0, 30), st.integers(1, 20))))
def test_what_is_kept_is_known_and_what_is_dropped_is_not(
    messages: list[tuple[str, int, int]],
) -> None:
    elsewhere = {b"of another stream": message_id(chain="other")}
    known = dict(elsewhere)
    recent = RecentMessages(TIGHT, known)
    now_ns = NOW_NS
    for number, (chain, waited_ms, size_bytes) in enumerate(messages):
        now_ns += waited_ms * MS_NS
        id = message_id(chain=chain, timestamp_ms=NOW_MS + number)
        recent.add(id, bytes([number % 256]) * size_bytes + number.to_bytes(2, "big"), now_ns)
        assert known == elsewhere | kept_in(recent)
    recent.clear()
    assert known == elsewhere
