"""The published workload over sockets, small. The long form is campaigns/topics_sockets.py."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from campaigns import topics_sockets
from campaigns.topic_journal import Given
from campaigns.topic_words import Accepted, Refused
from campaigns.topics_sockets import Run, Settings

SMALL = Settings(
    nodes=12, processes=3, topics=4, events=40, interval_ms=25, ordered=True, drain_s=60
)


def test_all_that_was_injected_reaches_all_readers_in_one_order(tmp_path: Path, seed: int) -> None:
    outcome = topics_sockets.run(replace(SMALL, seed=seed), tmp_path)
    assert not outcome.failure
    assert outcome.injected == 40
    assert outcome.delivered == outcome.due > 400
    assert outcome.coverage_percent == 100
    assert outcome.rpcs_per_event > 1
    # Whatever one node received another one sent; and no node of this size is free, or huge.
    assert round(outcome.sent_mib.total, 6) == round(outcome.received_mib.total, 6) > 0
    for each in (outcome.cpu_s, outcome.memory_mib):
        assert 0 < each.per_node.mean < 60
        assert round(each.per_node.mean * 12, 6) == round(each.total, 6)
    assert any("100.000 %" in line for line in topics_sockets.table(outcome))


def test_the_campaign_notices_what_is_missing_broken_or_refused(tmp_path: Path) -> None:
    def run(events: int = 1) -> Run:
        made = Run(replace(SMALL, events=events, topics=1), tmp_path)
        for number in range(events):
            made.ledger.issue(number, 1)
        return made

    readers = run().workload.topics[0].readers
    lost = run()
    lost.told(Accepted(0, 2))
    for reader in readers[1:]:
        lost.given(reader, Given(0, 0, b"a", None, False, 3))
    assert lost.failure() == f"1 deliveries are missing: event 0 at node {readers[0]}"
    lost.given(readers[0], Given(0, 0, b"a", None, False, 3))
    assert not lost.failure()
    assert lost.failure(failed_machines=2).startswith("2 times a machine failed")
    lost.given(readers[0], Given(0, 0, b"a", None, False, 3))
    assert "twice" in lost.ledger.wrong[-1]

    disordered = run(events=2)
    for number, (id, parent) in enumerate(((b"a", None), (b"b", b"a"))):
        disordered.told(Accepted(number, 2))
        for reader in readers[1:]:
            disordered.given(reader, Given(0, number, id, parent, False, 3))
    disordered.given(readers[0], Given(0, 1, b"b", b"a", False, 3))
    disordered.given(readers[0], Given(0, 0, b"a", None, False, 3))
    assert "times wrong" in disordered.failure()

    refused = run()
    refused.told(Refused(0, "no publisher answered"))
    assert refused.failure() == "0 of 1 events were accepted"
