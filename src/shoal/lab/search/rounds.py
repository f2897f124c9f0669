"""Rounds of the measurement, as seen from outside: how fast nodes come to know the network.

A round begins when the first node begins it. A step is five seconds: a beat, but in small networks,
which beat faster. At each step a node counts that has all three sums within 5 %: of its estimate
while it is in the round, and of its result once it has gone on to the next one.
"""

from __future__ import annotations

from statistics import fmean

import msgspec

from shoal.base.units import seconds
from shoal.lab.search.grown import MOST, GrownNetwork, is_near, off_by
from shoal.lab.search.model.gossip import STEPS_MAX, Step
from shoal.protocols.search.messages import Totals
from shoal.protocols.search.rounds import NO_ROUND, is_newer

LOOK_S = 1.0


class RoundFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One round."""

    steps: int | None
    """Until 99 % of the nodes were within 5 %; None: they never were."""
    lasted_s: float
    """From its first node to the first of the next round."""
    within: float
    """What part of the nodes was within 5 % with what they took for its result."""
    off: float
    """How far the worst of the three sums of a node was off then, in the mean."""


class _Round:
    def __init__(self, number: int, place: int, at_s: float) -> None:
        self.number = number
        self.place = place
        self.at_s = at_s
        self.next_s: float | None = None
        self.steps: list[Step] = []
        self.result: tuple[float, float] | None = None


class Rounds:
    """Watches a network that has grown."""

    def __init__(self, network: GrownNetwork) -> None:
        self._network = network
        self._newest = NO_ROUND
        self._first = True
        self._open: list[_Round] = []
        self._done: list[_Round] = []

    def watch(self, rounds: int, within_s: float) -> None:
        """Let time pass until so many whole rounds were seen, or for so long."""
        simulation = self._network.simulation
        end_s = simulation.time_s + within_s
        while len(self._done) < rounds and simulation.time_s < end_s:
            simulation.run_for(LOOK_S)
            self._look(simulation.time_s)

    @property
    def steps(self) -> list[Step]:
        """Of all rounds that were seen to their end."""
        return [step for round in self._done for step in round.steps]

    def figures(self) -> tuple[RoundFigures, ...]:
        """Of the same rounds."""
        told = []
        for round in self._done:
            enough = (step.step for step in round.steps if step.within >= MOST)
            assert round.next_s is not None
            assert round.result is not None
            within, off = round.result
            told.append(
                RoundFigures(
                    steps=next(enough, None),
                    lasted_s=round.next_s - round.at_s,
                    within=within,
                    off=off,
                )
            )
        return tuple(told)

    def _look(self, now_s: float) -> None:
        self._find_new(now_s)
        beat_s = seconds(self._network.config.beat_ns)
        for round in list(self._open):
            due = len(round.steps) + 1
            if now_s < round.at_s + due * beat_s:
                continue
            within, off, ended = self._judge(round)
            round.steps.append(Step(due, round.place, within))
            if ended or due >= STEPS_MAX:
                # Everybody has its result, or never will.
                round.result = within, off
                round.next_s = round.next_s or now_s
                self._open.remove(round)
                self._done.append(round)

    def _find_new(self, now_s: float) -> None:
        newest = self._newest
        for node in self._network.running():
            number = self._network.machine(node).parts.measurement.round
            if number != NO_ROUND and (newest == NO_ROUND or is_newer(number, newest)):
                newest = number
        if newest == self._newest:
            return
        if not self._first:  # the first that is seen may have begun long ago
            for round in self._open:
                round.next_s = round.next_s or now_s
            place = len(self._done) + len(self._open)
            self._open.append(_Round(newest, place, now_s))
        self._first, self._newest = False, newest

    def _judge(self, round: _Round) -> tuple[float, float, bool]:
        true, near, errors, inside = self._network.true_totals(), 0, [], 0
        running = self._network.running()
        for node in running:
            measurement = self._network.machine(node).parts.measurement
            found: Totals | None = None
            if measurement.round == round.number:
                found, inside = measurement.estimate, inside + 1
            elif measurement.round != NO_ROUND and is_newer(measurement.round, round.number):
                found = measurement.known
            near += is_near(found, true)
            if found is not None:
                errors.append(off_by(found, true))
        ended = round.next_s is not None and not inside
        return near / max(1, len(running)), fmean(errors) if errors else 1.0, ended
