"""The circle under virtual time: nodes that join, leave, crash and return at random.

The long form is campaigns/search_churn.py.
"""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from campaigns import search_churn
from shoal.base.ids import short_node_id
from shoal.protocols.search.circle.locations import STANDING
from shoal.protocols.search.config import SearchConfig
from shoal.sim.checkers import MachineInvariants
from shoal.sim.faults import Jitter
from shoal_lab.experiments.search.network import SearchNetwork
from shoal_lab.experiments.search.survey import Isolation, Survey, survey
from tests.support.search_networks import CALM

JOIN_S = 0.1
STORM_S = 60.0
QUIET_S = 100.0  # after it nobody waits for anything any more: not even for late neighbours
ISOLATED_S_MAX = 60.0
PLACED_MIN = 6  # whoever has a place stays if it is one of so few: a network can die out


class Storm:
    """`operations` at random moments, some of them in the same instant, while delays vary.

    Beats are those of large networks unless told otherwise: there are fewer of them, in which
    nodes notice what went wrong.
    """

    def __init__(
        self,
        seed: int,
        *,
        nodes: int,
        operations: int,
        crashes: float,
        jitter_ms: float = 60.0,
        config: SearchConfig = CALM,
    ) -> None:
        self.network = SearchNetwork(seed, nodes, config, checkers=[MachineInvariants()])
        self.simulation = self.network.simulation
        self.isolation = Isolation()
        self._crashes = crashes
        self._rng = Random(f"storm {seed}")
        self._begin_s = nodes * JOIN_S + 30
        self._end_s = self._begin_s + STORM_S
        Jitter(end_s=self._end_s, mean_ms=jitter_ms).install(self.simulation)
        for _ in range(operations):
            when_s = self._begin_s + STORM_S * self._rng.random()
            for _ in range(self._rng.choice([1, 1, 4])):
                soon_s = when_s + 0.2 * self._rng.random()
                self.simulation.at_s(soon_s, self._operate)

    def run(self) -> Survey:
        """The whole story; the network is quiet afterwards."""
        self.network.join_all(JOIN_S)
        while self.simulation.time_s < self._end_s + QUIET_S:
            self.simulation.run_for(1)
            self.isolation.look(self.network.circles(), self.simulation.time_s)
        self.simulation.check_quiet()
        return survey(self.network.circles())

    def _operate(self) -> None:
        network, rng = self.network, self._rng
        away = [node for node in network.nodes if node.host is None]
        placed = [node for node in network.staying() if network.circle(node).joined]
        draw = rng.random()
        if draw < 0.5:
            if away:
                network.start(rng.choice(away))
        elif len(placed) > PLACED_MIN:
            node = rng.choice(network.staying())
            (network.crash if draw < 0.5 + self._crashes / 2 else network.leave)(node)


def check_isolation(storm: Storm) -> None:
    victim = storm.isolation.victim
    name = "" if victim is None else short_node_id(victim)
    assert storm.isolation.longest_s < ISOLATED_S_MAX, name


@pytest.mark.parametrize(("jitter_ms", "config"), [(20.0, SearchConfig()), (100.0, CALM)])
def test_without_crashes_there_is_one_circle_without_holes(
    seed: int, jitter_ms: float, config: SearchConfig
) -> None:
    storm = Storm(seed, nodes=14, operations=80, crashes=0, jitter_ms=jitter_ms, config=config)
    seen = storm.run()
    assert seen.whole, seen
    assert dict(seen.phases) == {STANDING: 3 * seen.nodes}
    assert dict(seen.degrees) == {6: seen.nodes}
    assert storm.network.counts["leaves"] > 10
    check_isolation(storm)
    assert storm.network.races["both-leave"] > 0


def test_with_crashes_ends_agree_and_nobody_is_left_alone(seed: int) -> None:
    storm = Storm(seed, nodes=24, operations=40, crashes=0.3)
    seen = storm.run()
    assert storm.network.counts["crashes"] > 3
    assert seen.half_open == []
    assert seen.components == 1
    assert seen.isolated == []
    assert min(seen.degrees) >= 5, "one may be missing, two are asked for"
    check_isolation(storm)


def test_nine_of_ten_leave_at_once(seed: int) -> None:
    network = SearchNetwork(seed, 80)
    network.join_all(JOIN_S)
    network.simulation.run_for(60)
    assert survey(network.circles()).whole
    for node in network.simulation.random("leavers").sample(network.nodes, 72):
        network.leave(node)
    network.simulation.run_for(100)
    seen = survey(network.circles())
    assert seen.nodes == 8
    assert seen.whole, seen
    assert network.races["both-leave"] > 20


def settled(network: SearchNetwork) -> Survey:
    """After a minute; or later, if somebody is between two neighbours at that moment."""
    network.simulation.run_for(60)
    seen = survey(network.circles())
    for _ in range(24):
        if not seen.half_open and min(seen.degrees) >= 5:
            break
        network.simulation.run_for(5)
        seen = survey(network.circles())
    return seen


def test_half_of_them_crash_at_once(seed: int) -> None:
    network = SearchNetwork(seed, 80)
    network.join_all(JOIN_S)
    network.simulation.run_for(60)
    for node in network.simulation.random("victims").sample(network.nodes, 40):
        network.crash(node)
    seen = settled(network)
    assert seen.nodes == 40
    assert seen.half_open == []
    assert seen.components == 1
    assert min(seen.degrees) >= 5
    assert seen.holes > 10, "holes stay"
    network.join_all(JOIN_S)
    seen = settled(network)
    assert seen.nodes == 80, "who crashed is back"
    assert seen.half_open == []
    assert seen.components == 1
    assert min(seen.degrees) >= 5


def test_the_same_seed_gives_the_same_story(seed: int) -> None:
    first, second = (Storm(seed, nodes=8, operations=20, crashes=0.2) for _ in range(2))
    assert first.run() == second.run()
    assert first.simulation.scheduler.now_ns == second.simulation.scheduler.now_ns
    assert first.network.races == second.network.races


# What the survey sees


def standing(seed: int) -> SearchNetwork:
    network = SearchNetwork(seed, 8)
    network.join_all(JOIN_S)
    network.simulation.run_for(60)
    assert survey(network.circles()).whole
    return network


def test_the_survey_notices_what_is_wrong(seed: int) -> None:
    network = standing(seed)
    circles = network.circles()
    location = next(iter(network.circle(network.nodes[0]).ring.locations))
    edge, location.slave = location.slave, None
    seen = survey(circles)
    assert (seen.holes, seen.circles, seen.chains) == (1, 0, 1)
    assert len(seen.half_open) == 1, "the other end believes in it"
    assert not seen.whole
    location.slave = edge
    assert survey(circles).whole


def test_the_survey_counts_circles_and_parts(seed: int) -> None:
    one, other = standing(seed), standing(seed + 1)
    seen = survey(one.circles() | other.circles())
    assert (seen.circles, seen.chains, seen.components, seen.largest) == (2, 0, 2, 8)
    assert not seen.whole


def test_isolation_is_counted_from_the_first_look_on(seed: int) -> None:
    network = standing(seed)
    node = network.nodes[3]
    circles = network.circles()
    isolation = Isolation()
    isolation.look(circles, 10.0)
    assert isolation.longest_s == 0
    for edge in list(circles[node.id].ring.edges):
        circles[node.id].ring.edges.remove(edge)
    for now_s in (11.0, 30.0, 41.0):
        isolation.look(circles, now_s)
    assert (isolation.longest_s, isolation.victim) == (30.0, node.id)
    assert survey(circles).isolated == [node.id]
    isolation.look({node.id: circles[node.id]}, 200.0)
    assert isolation.longest_s == 30.0, "whoever is the only one misses nobody"


# The campaign

SMALL = search_churn.Settings(nodes=24, hours=0.1, session_s=120.0)


@pytest.mark.parametrize("number", [1, 2])
def test_nobody_is_lost_while_others_come_and_go(number: int) -> None:
    outcome = search_churn.run_one(number, SMALL)
    assert outcome.failure == ""
    assert outcome.leaves > 40
    assert outcome.crashes > 2
    assert outcome.joins == outcome.leaves + outcome.crashes
    assert outcome.races.keys() == {"both-leave", "leave-during-split"}
    assert outcome.longest_isolation_s < ISOLATED_S_MAX


def test_the_campaign_notices_what_is_wrong() -> None:
    run = search_churn.ChurnRun(1, msgspec.structs.replace(SMALL, nodes=8), "")
    run.network.join_all(JOIN_S)
    run.simulation.run_for(60)
    location = next(iter(run.network.circle(run.network.nodes[0]).ring.locations))
    location.slave = None
    assert "half open" in search_churn.verdict(survey(run.network.circles()), Isolation(), {})
    lonely = Isolation()
    lonely.longest_s, lonely.victim = 61.0, run.network.nodes[0].id
    whole = msgspec.structs.replace(survey(run.network.circles()), half_open=[])
    assert "alone for 61 s" in search_churn.verdict(whole, lonely, {})
    apart = msgspec.structs.replace(whole, components=2)
    assert "2 parts" in search_churn.verdict(apart, Isolation(), {})
    assert "both-leave" in search_churn.verdict(whole, Isolation(), {"leave-during-split": 3})
    both = {"leave-during-split": 3, "both-leave": 1}
    assert search_churn.verdict(whole, Isolation(), both) == ""


def test_replay_says_what_was_run() -> None:
    replay = search_churn.replay_of(7, SMALL)
    assert "--first 7 --seeds 1" in replay
    assert "--nodes 24" in replay
