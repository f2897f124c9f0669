"""Signatures under way: what is checked once, and what waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from shoal.identity.topics.descriptors import Descriptor
from shoal.identity.topics.event_signatures import claims
from shoal.kernel.effects import Effect, Notify, Verify
from shoal.kernel.inputs import Verified
from shoal.kernel.records import Rejected
from shoal.protocols.topics.config import TopicsConfig
from shoal.protocols.topics.topic import WAITING_MAX, Intake
from tests.support.machines import peer_id
from tests.support.topic_bench import event_by, id_of, request_by, topic_by

TOPIC = topic_by(0)
ID = id_of(TOPIC)
ONE, OTHER = peer_id(1), peer_id(2)
PUBLISHED = event_by(1, ID, b"x", publisher=0)


def good(now_ns: int) -> list[Effect]:
    return [Notify(("good", now_ns))]


def bad(now_ns: int) -> list[Effect]:
    return [Notify(("bad", now_ns))]


def said(number: int, now_ns: int) -> list[Effect]:
    return [Notify(number)]


class Bench:
    """One peer brings descriptors."""

    def __init__(self, checks_max: int = 100) -> None:
        self.intake = Intake(TopicsConfig(checks_max=checks_max))
        self.under_way: list[Verify] = []

    def brings(self, descriptor: Descriptor) -> list[str]:
        """Why it is refused at once."""
        effects = self.intake.check(ONE, id_of(descriptor), descriptor, good, 5, bad)
        self.under_way += [one for one in effects if isinstance(one, Verify)]
        return [one.reason for one in effects if isinstance(one, Rejected)]

    def verdicts(self, *valid: bool) -> Sequence[Effect]:
        """The oldest checks end like this."""
        effects: list[Effect] = []
        for each in valid:
            effects += self.intake.verified(Verified(self.under_way.pop(0).token, each), 7)
        return effects


def test_all_who_have_to_have_signed() -> None:
    bench = Bench()
    assert bench.brings(PUBLISHED) == []
    checked = [(one.signer, one.signed) for one in bench.under_way]
    assert checked == [(claim.signer, claim.signed) for claim in claims(PUBLISHED)]
    assert len(checked) == 2
    assert bench.verdicts(True) == []
    assert id_of(PUBLISHED) in bench.intake
    assert bench.verdicts(True) == [Notify(("good", 7))]
    assert id_of(PUBLISHED) not in bench.intake


def test_one_bad_signature_spoils_it() -> None:
    for verdicts in ((True, False), (False, True), (False, False)):
        bench = Bench()
        bench.brings(PUBLISHED)
        assert bench.verdicts(*verdicts) == [Rejected(ONE, "bad-signature"), Notify(("bad", 7))]


def test_what_is_under_way_is_not_checked_twice() -> None:
    bench = Bench()
    for _ in range(2):
        assert bench.brings(TOPIC) == []
    assert len(bench.under_way) == 1


def test_what_nobody_signed_is_refused_at_once() -> None:
    bench = Bench()
    unsigned = request_by(1, ID, b"x")
    bare = replace(unsigned, metadata=replace(unsigned.metadata, signatures=None))
    no_key = replace(PUBLISHED, publisher=bytes.fromhex("1220" + "01" * 32))
    assert [bench.brings(one) for one in (bare, no_key)] == [["bad-signature"]] * 2
    assert id_of(bare) not in bench.intake


def test_more_than_can_be_checked_is_refused_as_busy() -> None:
    bench = Bench(checks_max=1)
    first, second = event_by(0, ID, b"1"), event_by(0, ID, b"2")
    assert [bench.brings(one) for one in (first, second)] == [[], ["busy"]]
    bench.verdicts(True)
    assert bench.brings(second) == []


def test_those_who_wait_for_a_topic_go_on_together_and_each_once() -> None:
    bench = Bench()
    bench.brings(TOPIC)
    for number in range(2 * WAITING_MAX):
        # As often as one likes: only the last word of each counts.
        assert bench.intake.add(ID, OTHER, partial(said, number)) == []
    for number in range(WAITING_MAX - 2):
        assert bench.intake.add(ID, peer_id(100 + number), lambda now_ns: []) == []
    late = peer_id(9999)
    assert bench.intake.add(ID, late, good) == [Rejected(late, "busy")]
    assert bench.verdicts(True) == [Notify(("good", 7)), Notify(2 * WAITING_MAX - 1)]


def test_nobody_goes_on_with_a_topic_that_is_not_signed() -> None:
    bench = Bench()
    bench.brings(TOPIC)
    bench.intake.add(ID, OTHER, good)
    assert bench.verdicts(False) == [Rejected(ONE, "bad-signature"), Notify(("bad", 7))]
