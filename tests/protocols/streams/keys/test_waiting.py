"""Messages whose key is not here: in order, not for ever, and in nobody's way."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shoal.base.ids import MessageId, NodeId, StreamId
from shoal.identity import SeededEntropy
from shoal.identity.group_key import GroupKey, Sealer
from shoal.protocols.streams.config import WaitingConfig
from shoal.protocols.streams.keys.key_ring import KeyRing
from shoal.protocols.streams.keys.sealed_queue import Waiting
from shoal.protocols.streams.signed_message import VerifiedMessage

STREAM = StreamId("0x" + "11" * 20 + "/private")
CONFIG = WaitingConfig(patience_ns=100, chain_messages_max=4, messages_max=6)


class Bench:
    """What was given on."""

    def __init__(self) -> None:
        self.ring = KeyRing()
        self.given: list[Any] = []
        self.waiting = Waiting(self.awaits, self.given.append, CONFIG)
        self.sealers = {
            name: Sealer(GroupKey.generate(STREAM, publisher(name), SeededEntropy(name)))
            for name in "abc"
        }

    def awaits(self, key: bytes) -> bool:
        return self.ring.get(key) is None

    def message(self, name: str, number: int, *, sealed: bool = True) -> VerifiedMessage:
        id = MessageId(STREAM, 0, number, 0, publisher(name), "c")
        kind, content = (0, b"{}")
        if sealed:
            kind, content = self.sealers[name].seal(id, kind, content)
        return VerifiedMessage(id, None, kind, content, b"")

    def take(self, name: str, number: int, now_ns: int = 0, *, sealed: bool = True) -> None:
        self.waiting.take(self.message(name, number, sealed=sealed), (name, number), now_ns)

    def learn(self, name: str, now_ns: int = 0) -> None:
        self.ring.add(self.sealers[name].key)
        self.waiting.look(now_ns)


def publisher(name: str) -> NodeId:
    return NodeId(name.encode() * 20)


def test_a_message_waits_for_its_key_and_holds_up_its_own_chain_only() -> None:
    bench = Bench()
    bench.ring.add(bench.sealers["b"].key)
    bench.take("a", 1)
    bench.take("b", 1)
    bench.take("a", 2, sealed=False)
    bench.take("c", 1, sealed=False)
    assert bench.given == [("b", 1), ("c", 1)]
    assert len(bench.waiting) == 2
    bench.learn("a")
    assert bench.given[2:] == [("a", 1), ("a", 2)]
    assert len(bench.waiting) == 0
    assert bench.waiting.next_ns() is None


def test_after_a_while_it_is_shown_without_and_those_behind_have_their_own_time() -> None:
    bench = Bench()
    bench.take("a", 1, 0)
    bench.take("a", 2, 50)
    assert bench.waiting.next_ns() == 100
    bench.waiting.look(99)
    assert bench.given == []
    bench.waiting.look(100)
    assert bench.given == [("a", 1)]
    assert bench.waiting.next_ns() == 150


def test_of_too_many_the_oldest_goes_on() -> None:
    bench = Bench()
    for number in range(5):
        bench.take("a", number)
    assert bench.given == [("a", 0)]
    for number in range(3):
        bench.take("b", number)
    assert bench.given == [("a", 0), ("a", 1)]  # of whoever has most
    assert len(bench.waiting) == 6


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from("abc"), st.booleans()),
            st.sampled_from(["learn a", "learn b", "wait"]),
        ),
        max_size=40,
    )
)
def test_everything_is_given_on_once_and_each_chain_in_order(steps: list[Any]) -> None:
    bench, now_ns, number = Bench(), 0, 0
    taken: list[tuple[str, int]] = []
    for step in steps:
        if step == "wait":
            now_ns += 30
            bench.waiting.look(now_ns)
        elif isinstance(step, str):
            bench.learn(step[-1], now_ns)
        else:
            number += 1
            bench.take(step[0], number, now_ns, sealed=step[1])
            taken.append((step[0], number))
        assert len(bench.waiting) <= CONFIG.messages_max
    bench.waiting.look(now_ns + 1000)
    assert sorted(bench.given, key=lambda one: one[1]) == taken
    for name in "abc":
        assert [one for one in bench.given if one[0] == name] == [t for t in taken if t[0] == name]
