"""Standing queries while many of the nodes that have them are killed: what is kept is told all the
same, as surely as is stated, and who may have missed something that only passed by is told so."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from shoal.base.units import S_NS
from shoal.protocols.search.commands import PutDocument, Seen, WatchDocuments
from shoal.protocols.search.documents.document import Life
from tests.support.search_networks import Network

SLOT = 0
NODES, WATCHERS, KILLED = 80, 6, 60
SEEDS = (0, 2)


class Story:
    """Watchers, publishers that stay, and nodes that are killed in between."""

    def __init__(self, seed: int) -> None:
        self.network = Network(seed, NODES)
        self.rng = Random(seed)
        nodes = list(self.network.nodes)
        self.watchers, others = nodes[:WATCHERS], nodes[WATCHERS:]
        self.publishers, self.victims = others[:-KILLED], others[-KILLED:]
        for node in self.watchers:
            node.command(SLOT, WatchDocuments("title:news"), "w")
        self.network.simulation.run_for(10)
        self.put_at_s: dict[str, float] = {}

    def put(self, name: str, life: Life) -> None:
        content = {"title": "news", "number": len(self.put_at_s)}
        command = PutDocument(name, content, life, 600 * S_NS)
        self.put_at_s[name] = self.network.simulation.time_s
        self.rng.choice(self.publishers).command(SLOT, command, name)

    def play(self, life: Life) -> float:
        """A document every half second; when nodes were killed."""
        run = self.network.simulation.run_for
        for number in range(60):
            self.put(f"before{number}", life)
            run(0.5)
        killed_s = self.network.simulation.time_s
        for node in self.victims:
            self.network.crash(node)
        for number in range(160):
            self.put(f"after{number}", life)
            run(0.5)
        run(60)
        return killed_s

    def seen(self, watcher: int) -> list[Seen]:
        told = self.network.told[self.watchers[watcher].index]
        return [event for event in told if isinstance(event, Seen)]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_kept_is_caught_up_with(seed: int) -> None:
    print(f"seed {seed}")
    story = Story(seed)
    story.play("fading")
    due = told = 0
    for watcher in range(WATCHERS):
        names = Counter(event.document.name for event in story.seen(watcher))
        assert all(count == 1 for count in names.values()), "told once each"
        due += len(story.put_at_s)
        told += len(names)
    print(f"{told} of {due}")
    assert told >= 0.99 * due


@pytest.mark.parametrize("seed", SEEDS)
def test_what_only_passed_by_is_a_gap(seed: int) -> None:
    print(f"seed {seed}")
    story = Story(seed)
    killed_s = story.play("instant")
    missed_any = 0
    for watcher in range(WATCHERS):
        seen = story.seen(watcher)
        names = {event.document.name for event in seen}
        missed = [name for name in story.put_at_s if name not in names]
        after = [name for name in missed if story.put_at_s[name] >= killed_s]
        gaps = [e for e in seen if e.gap_before and e.document.name.startswith("after")]
        missed_any += len(after)
        if not gaps:  # none of its neighbours was killed: it saw the network shrink later
            assert len(after) <= 0.05 * len(story.put_at_s), f"{after} without a sign"
            continue
        assert not any(e.gap_before for e in seen if e.document.name.startswith("before"))
        recovered_s = story.put_at_s[gaps[-1].document.name]
        late = [name for name in after if story.put_at_s[name] > recovered_s]
        assert len(late) <= 0.05 * len(story.put_at_s), f"{late} without a sign"
    print(f"{missed_any} missed")


def test_a_quiet_network_has_no_gaps() -> None:
    story = Story(9)
    for number in range(40):
        story.put(f"quiet{number}", "instant")
        story.network.simulation.run_for(1)
    for watcher in range(WATCHERS):
        assert len(story.seen(watcher)) >= 38
        assert not any(event.gap_before for event in story.seen(watcher))
