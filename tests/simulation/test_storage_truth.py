"""An answer that claims to be complete is; and a minute after the last fault every answer is."""

from __future__ import annotations

import pytest

from tests.simulation.storage_truth import run


@pytest.mark.parametrize("number", range(5))
def test_no_acknowledged_message_is_missing_from_an_answer_that_claims_to_be_complete(
    number: int, seed: int
) -> None:
    outcome = run(seed * 5 + number)
    assert outcome.untrue == []
    assert outcome.unsure == [], "a minute after the last fault"
    assert outcome.acknowledged > 50
    assert outcome.complete > 100
    assert outcome.incomplete > 0, "or the faults were none"
