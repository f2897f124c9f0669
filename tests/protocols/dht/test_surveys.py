"""Parts of the space that lookups saw: what is known there is all there is, or else not told."""

from __future__ import annotations

from random import Random

from shoal.base.ids import Contact
from shoal.protocols.dht.config import DhtConfig
from shoal.protocols.dht.key_space import SPACE, DhtId, id_of_node
from shoal.protocols.dht.lookup import Lookup
from shoal.protocols.dht.survey import Surveys
from tests.support.dht import ME, contact

K = 4
CONFIG = DhtConfig(k=K)
PEOPLE = [contact(number) for number in range(1, 121)]


def nearest(target: DhtId, people: list[Contact] = PEOPLE) -> list[Contact]:
    return sorted(people, key=lambda one: id_of_node(one.node) ^ target)


def looked_up(target: DhtId, people: list[Contact] = PEOPLE) -> Lookup:
    """A lookup at whose beginning everybody was known, and who is near enough has answered."""
    lookup = Lookup(target, ME, people, CONFIG)
    while chosen := lookup.next():
        for one in chosen:
            lookup.answered(one.node, ())
    return lookup


def surveyed(count: int, seed: int = 1) -> Surveys:
    rng, surveys = Random(seed), Surveys(CONFIG)
    for _ in range(count):
        surveys.ended(looked_up(DhtId(rng.randrange(SPACE))), 0)
        surveys.check_invariants()
    return surveys


def test_what_is_said_to_be_nearest_is() -> None:
    rng, known = Random(2), []
    for count in (5, 20, 60, 200):
        surveys = surveyed(count)
        answers = 0
        for _ in range(200):
            target = DhtId(rng.randrange(SPACE))
            near = surveys.nearest(target, 0)
            if near is not None:
                answers += 1
                assert near == nearest(target)[: len(near)]
                assert len(near) > K
        known.append(answers)
    assert known == sorted(known)
    assert known[0] < 50
    assert known[-1] > 120


def test_a_network_of_fewer_than_k_is_known_after_one_lookup() -> None:
    few = PEOPLE[: K - 1]
    surveys = Surveys(CONFIG)
    surveys.ended(looked_up(DhtId(5), few), 0)
    for target in (DhtId(0), DhtId(SPACE - 1)):
        assert surveys.nearest(target, 0) == nearest(target, few)
    # Whoever comes shows that others may have come, too.
    surveys.heard(PEOPLE[50])
    assert surveys.nearest(DhtId(0), 0) is None
    surveys.check_invariants()


def test_a_search_that_did_not_see_everybody_says_nothing() -> None:
    target = DhtId(SPACE // 3)
    stopped, silent, alone = looked_up(target), Lookup(target, ME, PEOPLE, CONFIG), Surveys(CONFIG)
    stopped.stopped = True
    silent.next()
    cut_off = Lookup(target, ME, PEOPLE[:3], CONFIG)
    for number, one in enumerate(cut_off.next()):
        cut_off.failed(one.node) if number else cut_off.answered(one.node, ())
    nobody = Lookup(target, ME, (), CONFIG)
    for lookup in (stopped, silent, cut_off, nobody):
        assert lookup.surveyed is None
        alone.ended(lookup, 0)
    assert len(alone) == 0
    assert looked_up(target).surveyed == id_of_node(nearest(target)[K - 1].node) ^ target


def test_parts_grow_old_and_lose_who_does_not_answer() -> None:
    surveys = surveyed(200)
    target = next(
        place
        for number in range(100)
        if surveys.nearest(place := DhtId(number * SPACE // 100), 0) is not None
    )
    dead, second, *_ = nearest(target)
    surveys.heard(dead)  # known already: nothing new
    surveys.lost(dead.node)
    surveys.lost(dead.node)
    near = surveys.nearest(target, CONFIG.survey_ns)
    assert near is not None
    assert near[0] == second
    assert surveys.nearest(target, CONFIG.survey_ns + 1) is None
    # It lives after all: who was left out once may not be the only one.
    surveys.heard(dead)
    assert surveys.nearest(target, 0) is None
    surveys.check_invariants()


def test_they_are_bounded() -> None:
    surveys = Surveys(DhtConfig(k=K, surveys_max=3))
    rng = Random(3)
    for number in range(30):
        surveys.ended(looked_up(DhtId(rng.randrange(SPACE))), number)
        surveys.check_invariants()
    assert len(surveys) == 3
