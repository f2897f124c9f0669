"""Signatures under way."""

from __future__ import annotations

from shoal.kernel.effects import Effect, Verify
from shoal.kernel.inputs import Verified
from shoal.protocols.search.signature_checks import REMEMBERED_MAX, Checks
from tests.support.circle import Peer

ANN = Peer(1)


class Heard:
    def __init__(self) -> None:
        self.told: list[bool] = []

    def then(self, valid: bool, now_ns: int) -> list[Effect]:
        self.told.append(valid)
        return []


def begin(checks: Checks, heard: Heard, signed: bytes = b"signed") -> Verify | None:
    effects = checks.check(ANN.node, signed, heard.then, 0)
    if not effects:
        return None
    (effect,) = effects
    assert isinstance(effect, Verify)
    return effect


def test_a_good_signature_is_checked_once() -> None:
    checks, heard = Checks(4), Heard()
    effect = begin(checks, heard)
    assert effect is not None
    assert (effect.signer, effect.signed) == (ANN.node, b"signed")
    checks.verified(Verified(effect.token, True), 0)
    assert begin(checks, heard) is None
    assert heard.told == [True, True]


def test_a_bad_one_is_checked_again() -> None:
    checks, heard = Checks(4), Heard()
    for _ in range(2):
        effect = begin(checks, heard)
        assert effect is not None
        checks.verified(Verified(effect.token, False), 0)
    assert heard.told == [False, False]


def test_busy_is_said_at_the_bound() -> None:
    checks, heard = Checks(2), Heard()
    first = begin(checks, heard, b"1")
    assert not checks.busy
    begin(checks, heard, b"2")
    assert checks.busy
    assert first is not None
    checks.verified(Verified(first.token, True), 0)
    assert not checks.busy


def test_the_oldest_good_one_is_forgotten_first() -> None:
    checks, heard = Checks(2), Heard()
    for number in range(REMEMBERED_MAX + 1):
        effect = begin(checks, heard, str(number).encode())
        assert effect is not None
        checks.verified(Verified(effect.token, True), 0)
    assert begin(checks, heard, b"1") is None
    assert begin(checks, heard, b"0") is not None
