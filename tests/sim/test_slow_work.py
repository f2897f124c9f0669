"""Timers, disk and signature checks under virtual time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.ids import NodeId
from shoal.base.units import MS_NS
from shoal.identity import SIGNATURE_BYTES, PrivateKey, SeededEntropy, verify_signed
from shoal.kernel.effects import CancelTimer, Effect, Load, SetTimer, Store, Verify
from shoal.kernel.inputs import Input, Loaded, Stored, TimerFired, Verified
from shoal.sim import simulation
from tests.support.machines import peer_id
from tests.support.tiny_network import TinyNetwork

KEYS = st.sampled_from([b"one", b"two"])
WORK = st.one_of(
    st.tuples(KEYS, st.none() | st.binary(max_size=2)),  # a Store
    KEYS,  # a Load
)


@given(st.lists(st.lists(WORK, max_size=4), max_size=6))
def test_a_load_sees_every_earlier_store(batches: list[list[bytes | tuple[bytes, bytes]]]) -> None:
    """First in, first out, within one list of effects and between several close together."""
    net = TinyNetwork(1)
    expected: list[Input] = []
    disk: dict[bytes, bytes | None] = {}
    for batch in batches:
        effects: list[Effect] = []
        for work in batch:
            token = len(expected)
            if isinstance(work, bytes):
                effects.append(Load(work, token))
                expected.append(Loaded(token, disk.get(work)))
            else:
                effects.append(Store(*work, token))
                expected.append(Stored(token))
                disk[work[0]] = work[1]
        net.do(0, *effects)
        net.run(0.00001)
    net.run(1)
    assert net.machine(0).heard(Stored, Loaded) == expected


def test_nodes_have_disks_of_their_own() -> None:
    net = TinyNetwork(2)
    net.do(0, Store(b"key", b"value", 1))
    net.run(1)
    net.do(1, Load(b"key", 2))
    net.run(1)
    assert net.machine(1).heard(Loaded) == [Loaded(2, None)]


def test_a_write_takes_time() -> None:
    net = TinyNetwork(1)
    net.do(0, Store(b"key", b"value", 1))
    assert net.machine(0).heard(Stored) == []
    net.run(0.001)
    assert net.machine(0).heard(Stored) == [Stored(1)]


# Timers


def test_timers_fire_once_at_their_time_unless_cancelled_or_set_again() -> None:
    net = TinyNetwork(1)
    net.do(0, SetTimer("a", 10 * MS_NS), SetTimer("b", 20 * MS_NS), SetTimer("c", 5 * MS_NS))
    net.do(0, SetTimer("a", 30 * MS_NS), SetTimer("c", 0), CancelTimer("b"))
    net.do(0, SetTimer("d", 15 * MS_NS), CancelTimer("d"), SetTimer("d", 25 * MS_NS))
    net.machine(0).forget()
    begin_ns = net.simulation.scheduler.now_ns
    net.run(1)
    assert net.machine(0).heard() == [TimerFired("c"), TimerFired("d"), TimerFired("a")]
    waited_ms = [(time_ns - begin_ns) // MS_NS for time_ns in net.machine(0).times_ns]
    assert waited_ms == [0, 25, 30]


# Signatures


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bodies whose signatures were really checked."""
    checked: list[bytes] = []

    def counting(signer: NodeId, signed: bytes) -> bool:
        checked.append(signed[SIGNATURE_BYTES:])
        return verify_signed(signer, signed)

    monkeypatch.setattr(simulation, "verify_signed", counting)
    return checked


def test_signatures_are_really_checked_once_each_and_answered_in_order(checks: list[bytes]) -> None:
    key = PrivateKey.generate(SeededEntropy(1))
    other = PrivateKey.generate(SeededEntropy(2)).address
    good, bad = key.sign(b"good"), bytes(65)
    work = [
        Verify(key.address, good + b"good", 1),
        Verify(key.address, bad + b"good", 2),
        Verify(other, good + b"good", 3),
        Verify(key.address, good + b"evil", 4),
        Verify(key.address, good + b"good", 5),
        Verify(key.address, b"good", 6),
    ]
    net = TinyNetwork(2)
    for number in (0, 1):
        net.do(number, *work)
        assert net.machine(number).heard(Verified) == [], "it takes time"
        net.run(0.001)
        assert net.machine(number).heard(Verified) == [
            Verified(1, True),
            Verified(2, False),
            Verified(3, False),
            Verified(4, False),
            Verified(5, True),
            Verified(6, False),
        ]
    assert checks == [b"good", b"good", b"good", b"evil", b""], "once for all nodes"


def test_what_is_remembered_is_bounded(
    checks: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation, "SIGNATURES_MAX", 2)
    net = TinyNetwork(1)
    for body in (b"a", b"b", b"b", b"c", b"a", b"c"):
        net.do(0, Verify(peer_id(9), bytes(65) + body, None))
    assert checks == [b"a", b"b", b"c", b"a"]


def test_a_check_takes_as_long_as_the_simulation_says() -> None:
    net = TinyNetwork(1, verify_ns=7 * MS_NS)
    net.do(0, Verify(peer_id(9), b"", 1))
    net.run(1)
    asked_ns, answered_ns = net.machine(0).times_ns[-2:]
    assert answered_ns - asked_ns == 7 * MS_NS
