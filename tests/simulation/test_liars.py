"""Nodes that lie about their round trips. The long form is campaigns/liars.py."""

from __future__ import annotations

import msgspec

from campaigns.liars import LIES, Outcome, Settings, run_one, verdict


def test_lies_bring_nothing() -> None:
    settings = Settings(nodes=96, minutes=1.5)
    outcomes = [run_one(number, settings) for number in range(len(LIES))]
    assert {outcome.lie for outcome in outcomes} == set(LIES)
    assert verdict(outcomes) == []
    for outcome in outcomes:
        assert outcome.rdp < 1.3, outcome  # nor do they spoil it for all


def test_the_verdict_names_what_is_wrong() -> None:
    good = Outcome(0, "near", 400, 1, 1, 1.0, 1.0, 1.0, 0.0)
    assert verdict([good] * 100) == []
    surrounded = msgspec.structs.replace(good, eclipsed=2)
    assert "among liars only" in verdict([surrounded] * 100)[0]
    favoured = msgspec.structs.replace(good, lie="club", liar_rdp=0.96)
    assert "club" in verdict([favoured])[0]
