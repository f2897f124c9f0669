"""What applications do meanwhile: documents are put and looked for, from nodes all over.

Old documents were put before something happened. New ones are put all the time, and each is looked
for a few seconds later. A search counts if its node is still there when it is over; it succeeds if
its document was found.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any, Literal

import msgspec

from shoal.base.units import S_NS, ns_of_seconds
from shoal.protocols.search.commands import FindDocuments, Found, PutDocument
from shoal.protocols.search.documents.document import LIFE_NS_MAX, Life
from shoal.sim.host import SimNode
from shoal_lab.experiments.search.network import SEARCH_SLOT, GrownNetwork
from shoal_lab.experiments.search.options import ChurnedOptions

AGE_S = 3.0  # of a new document that is looked for: its bubble has arrived
WITHIN_S = 4.0  # a search is given; the machine waits 3 s for answers
NEW_NS = 60 * S_NS  # a new document lives: it is looked for once

Data = Literal["old", "new"]


class Asked(msgspec.Struct, eq=False):
    """One search."""

    data: Data
    at_s: float
    node: SimNode
    incarnation: int
    found: bool = False
    over: bool = False
    """Its node was there to the end."""


class Load:
    """Documents and searches, so many a second of each kind."""

    def __init__(
        self, network: GrownNetwork, per_s: float, confidence: float, old_life: Life
    ) -> None:
        """`per_s` may be changed at any time."""
        self.asked: list[Asked] = []
        self.per_s = per_s
        self._network = network
        self._confidence = confidence
        self._old_life: Life = old_life
        self._rng = network.simulation.random("load")
        self._old: list[str] = []
        self._names = 0
        self._end_s = 0.0
        for node in network.nodes:
            node.listeners.append(self._told)

    def put_old(self, count: int, within_s: float) -> None:
        """Documents that stay; time goes on until they are there."""
        simulation = self._network.simulation
        for number in range(count):
            simulation.at_s(simulation.time_s + number * within_s / count, self._put_old)
        simulation.run_for(within_s + AGE_S)

    def begin(self) -> None:
        """Put and search from now on, until told to stop."""
        self._end_s = float("inf")
        self._tick()

    def stop(self) -> None:
        """No more."""
        self._end_s = 0.0

    def _tick(self) -> None:
        simulation = self._network.simulation
        if simulation.time_s >= self._end_s:
            return
        simulation.at_s(simulation.time_s + 1 / self.per_s, self._tick)
        name = self._put("fading", NEW_NS)
        if name:
            simulation.at_s(simulation.time_s + AGE_S, partial(self._search, name, "new"))
        if self._old:
            self._search(self._rng.choice(self._old), "old")

    def _put_old(self) -> None:
        name = self._put(self._old_life, LIFE_NS_MAX[self._old_life])
        if name:
            self._old.append(name)

    def _put(self, life: Life, life_ns: int) -> str:
        node = self._network.draw_ready(self._rng)
        if node is None:
            return ""
        self._names += 1
        name = f"needle{self._names}"
        node.command(SEARCH_SLOT, PutDocument(name, {"title": name}, life, life_ns), name)
        return name

    def _search(self, name: str, data: Data) -> None:
        node = self._network.draw_ready(self._rng)
        if node is None:
            return
        simulation = self._network.simulation
        asked = Asked(data, simulation.time_s, node, node.incarnation)
        self.asked.append(asked)
        command = FindDocuments(f"title:{name}", self._confidence, None, round(WITHIN_S * S_NS))
        node.command(SEARCH_SLOT, command, asked)
        simulation.at_s(simulation.time_s + WITHIN_S, partial(_end, asked))

    def _told(self, event: Any) -> None:
        if type(event) is Found:
            token: Hashable = event.token
            if isinstance(token, Asked):
                token.found = True


def _end(asked: Asked) -> None:
    asked.over = asked.node.host is not None and asked.node.incarnation == asked.incarnation


# Nodes that come and go: each stays for a while, leaves or dies, and comes back later.


class Churn:
    """Sessions and absences are exponential around their means. A node that returns has a new
    incarnation, and with it none of what it kept."""

    def __init__(self, network: GrownNetwork, options: ChurnedOptions) -> None:
        self._network = network
        self._options = options
        self._rng = network.simulation.random("churn")
        self._going = False

    def begin(self) -> None:
        """From now on all sessions end some time."""
        self._going = self._options.session_s > 0
        for node in self._network.running():
            self._plan_end(node)

    def stop(self) -> None:
        """Whoever runs stays; whoever is away comes back."""
        self._going = False

    def _plan_end(self, node: SimNode) -> None:
        if self._going:
            stays_s = self._rng.expovariate(1 / self._options.session_s)
            self._after(stays_s, partial(self._end, node, node.incarnation))

    def _end(self, node: SimNode, incarnation: int) -> None:
        if not self._going or node.host is None or node.incarnation != incarnation:
            return
        if self._rng.random() < self._options.crashes:
            self._network.crash(node, ns_of_seconds(self._options.detect_s))
        else:
            self._network.leave(node)
        away_s = self._rng.expovariate(1 / self._options.away_s)
        self._after(away_s, partial(self._return, node))

    def _return(self, node: SimNode) -> None:
        if node.host is not None:
            # It has not left yet: a leave takes a minute at most.
            self._after(1.0, partial(self._return, node))
            return
        self._network.start(node)
        self._plan_end(node)

    def _after(self, wait_s: float, action: partial[None]) -> None:
        simulation = self._network.simulation
        simulation.at_s(simulation.time_s + wait_s, action)
