"""Which key a publisher seals with, and who can have it."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shoal.base.ids import MessageId, NodeId, StreamId
from shoal.identity import PrivateKey, SeededEntropy
from shoal.identity.group_key import GroupKey
from shoal.protocols.streams.config import SealingConfig
from shoal.protocols.streams.keys.key_ring import Reader, Sealing, ToWrap

STREAM = StreamId("0x" + "11" * 20 + "/private")
ME = NodeId(b"m" * 20)
KEYS = [PrivateKey.generate(SeededEntropy(number)) for number in range(5)]
FOREVER_NS = 2**63 - 1
ID = MessageId(STREAM, 0, 1, 0, ME, "c")


def reader(number: int, until_ns: int = FOREVER_NS, *, known: bool = True) -> Reader:
    key = KEYS[number]
    return Reader(key.address, key.public if known else None, until_ns)


def sealing(**settings: int) -> Sealing:
    return Sealing(STREAM, ME, SeededEntropy("sealing"), SealingConfig(**settings))


def given_to(wraps: list[ToWrap]) -> list[tuple[bytes, int]]:
    """Which key goes to whom."""
    numbers = {key.public: number for number, key in enumerate(KEYS)}
    return [(wrap.key.id, numbers[wrap.reader]) for wrap in wraps]


def current(sealing: Sealing) -> GroupKey:
    assert sealing.sealer is not None
    return sealing.sealer.key


def test_a_first_key_is_wrapped_for_every_reader_that_is_known() -> None:
    own = sealing()
    assert own.is_due(0)
    wraps = own.prepare([reader(0), reader(1, known=False), reader(2)], 10)
    assert given_to(wraps) == [(current(own).id, 0), (current(own).id, 2)]
    assert not own.is_due(10)
    assert own.prepare([reader(0), reader(1, known=False), reader(2)], 20) == []


def test_whoever_may_no_longer_read_does_not_have_the_next_key() -> None:
    own = sealing()
    own.prepare([reader(0), reader(1)], 10)
    first = current(own)
    wraps = own.prepare([reader(0)], 20)
    assert current(own).id != first.id
    assert given_to(wraps) == [(current(own).id, 0)]


def test_a_reader_of_whom_no_key_is_known_counts_as_well() -> None:
    own = sealing()
    own.prepare([reader(0), reader(1, known=False)], 10)
    first = current(own)
    own.prepare([reader(0)], 20)
    assert current(own).id != first.id  # it may have asked somebody for the key


def test_a_permission_that_ends_by_itself_ends_the_key() -> None:
    own = sealing()
    readers = [reader(0), reader(1, until_ns=100)]
    own.prepare(readers, 10)
    first = current(own)
    assert not own.is_due(99)
    assert own.is_due(100)
    wraps = own.prepare(readers, 100)
    assert current(own).id != first.id
    assert given_to(wraps) == [(current(own).id, 0)]


def test_a_new_reader_is_given_all_keys_of_this_process_and_others_nothing() -> None:
    own = sealing(age_ns=1000)
    own.prepare([reader(0)], 0)
    first = current(own)
    own.prepare([reader(0)], 1000)
    second = current(own)
    wraps = own.prepare([reader(0), reader(3)], 1500)
    assert current(own) is second
    assert given_to(wraps) == [(first.id, 3), (second.id, 3)]


def test_a_public_key_that_comes_to_be_known_is_used() -> None:
    own = sealing()
    own.prepare([reader(0), reader(1, known=False)], 0)
    wraps = own.prepare([reader(0), reader(1)], 5)
    assert given_to(wraps) == [(current(own).id, 1)]


def test_a_key_grows_old_and_is_used_up() -> None:
    own = sealing(age_ns=1000, seals_max=2)
    own.prepare([reader(0)], 0)
    assert own.is_due(1000)
    first = own.sealer
    assert first is not None
    first.seal(ID, 0, b"")
    assert not own.is_due(10)
    first.seal(ID, 0, b"")
    assert own.is_due(10)
    own.prepare([reader(0)], 10)
    assert own.sealer is not first
    assert not own.is_due(10)


def test_bounds_hold() -> None:
    own = sealing(age_ns=1, own_keys_max=2, readers_max=1)
    for now_ns in range(5):
        own.prepare([reader(0)], now_ns)
    wraps = own.prepare([reader(1), reader(2)], 5)
    assert len(wraps) == 2  # two keys, one reader


def test_after_forget_everybody_is_told_a_new_key() -> None:
    own = sealing()
    own.prepare([reader(0), reader(1)], 0)
    first = current(own)
    own.forget()
    assert own.is_due(1)
    wraps = own.prepare([reader(0), reader(1)], 1)
    assert current(own).id != first.id
    assert {(current(own).id, 0), (current(own).id, 1)} <= set(given_to(wraps))


class Revocations(RuleBasedStateMachine):
    """Readers come, go, expire and make themselves known; the publisher restarts. Nobody is ever
    given a key while not permitted, and what is sealed is open only to those who may read then."""

    @initialize()
    def begin(self) -> None:
        self.entropy = SeededEntropy("revocations")
        self.now_ns = 0
        self.permitted: dict[int, int] = {}
        self.known: set[int] = set()
        self.has: dict[int, set[bytes]] = {number: set() for number in range(len(KEYS))}
        self.nonces: set[bytes] = set()
        self.start()

    @rule()
    def start(self) -> None:
        config = SealingConfig(age_ns=50, seals_max=20, own_keys_max=3)
        self.own = Sealing(STREAM, ME, self.entropy, config)

    @rule(number=st.integers(0, 4), for_ns=st.sampled_from([5, 30, FOREVER_NS]))
    def grant(self, number: int, for_ns: int) -> None:
        self.permitted[number] = min(self.now_ns + for_ns, FOREVER_NS)
        self.prepare()

    @rule(number=st.integers(0, 4))
    def revoke(self, number: int) -> None:
        self.permitted.pop(number, None)
        self.prepare()

    @rule(number=st.integers(0, 4))
    def make_known(self, number: int) -> None:
        self.known.add(number)
        self.prepare()

    @rule(number=st.integers(0, 4))
    def ask(self, number: int) -> None:
        """A reader that asks somebody for the key in use gets it, if it may read."""
        if self.may_read(number) and self.own.sealer is not None:
            self.has[number].add(self.own.sealer.key.id)

    @rule(duration_ns=st.integers(1, 40))
    def wait(self, duration_ns: int) -> None:
        self.now_ns += duration_ns

    @rule()
    def publish(self) -> None:
        if self.own.is_due(self.now_ns):
            self.prepare()
        assert self.own.sealer is not None
        _, sealed = self.own.sealer.seal(ID, 0, b"")
        assert sealed[:24] not in self.nonces
        self.nonces.add(sealed[:24])
        for number in range(len(KEYS)):
            if sealed[:16] in self.has[number]:
                assert self.may_read(number)
            elif number in self.known:
                assert not self.may_read(number)

    @invariant()
    def bounded(self) -> None:
        assert len(self.own._keys) <= 3

    def may_read(self, number: int) -> bool:
        return self.now_ns < self.permitted.get(number, 0)

    def prepare(self) -> None:
        readers = [reader(n, end, known=n in self.known) for n, end in self.permitted.items()]
        for key, number in given_to(self.own.prepare(readers, self.now_ns)):
            assert self.may_read(number)
            self.has[number].add(key)


TestRevocations = Revocations.TestCase
TestRevocations.settings = settings(max_examples=40, stateful_step_count=40)
