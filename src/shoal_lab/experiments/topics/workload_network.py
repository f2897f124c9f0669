"""What networks of both systems have in common: keys, a workload, its injectors, deaths, counts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from shoal.base.errors import ConfigError
from shoal.base.ids import Contact, NodeId
from shoal.base.units import MS_NS
from shoal.identity import PrivateKey
from shoal.kernel.machine import Codec, Machine
from shoal.kernel.records import FaultInjected
from shoal.sim.checkers import Checker
from shoal.sim.delays import DelayModel
from shoal.sim.host import SimNode
from shoal.sim.links import Frame, LinkEnd, Shaper
from shoal.sim.simulation import Simulation
from shoal_lab.experiments.streams.simulated_network import make_keys
from shoal_lab.experiments.topics.ledger import NUMBER_BYTES, Ledger, payload_of
from shoal_lab.experiments.topics.workload import (
    INJECTORS,
    TOPICS,
    Workload,
    digest_workload,
    load_workload,
    make_workload,
)
from shoal_lab.scenarios.scenario import NODES_MAX, Scenario, delay_model

CREATED_PART = 1 / 3  # of the time to settle, after which topics are made,
SUBSCRIBED_PART = 1 / 2  # and after which their readers come


class WorkloadNetwork(ABC):
    """Nodes that join, read and publish what a workload says. Every node has an application that
    begins anew with each of its incarnations."""

    event_kind: ClassVar[str]
    """What messages that carry an event count as."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        codecs: Sequence[Codec],
        *,
        checkers: Sequence[Checker] = (),
        replay: str = "",
    ) -> None:
        self.scenario = scenario
        self.options = options_of(scenario)
        delays = delay_model(scenario.network.delays)
        self.simulation = Simulation(
            seed,
            SlowDelay(delays) if self.options.slow else delays,
            codecs=codecs,
            wire=scenario.network.wire,
            checkers=checkers,
            replay=replay,
        )
        _, self.keys = make_keys(scenario.network, seed)
        self.workload = _workload(scenario, self.options, self.simulation.random("workload"))
        self.ledger = Ledger(self.workload, len(self.keys), ordered=self.options.ordered)
        self.meter = Meter(self.sort_message)
        self.contacts: list[Contact] = []
        self.nodes = [self._add(number, key) for number, key in enumerate(self.keys)]
        if self.options.slow:
            self.simulation.add_shaper(EvenJitter(self.simulation.random("jitter")))
        self.simulation.add_shaper(self.meter)
        for fault in scenario.faults:
            fault.install(self.simulation)
        self._rng = self.simulation.random("injectors")

    # Playing the scenario

    def run(self) -> None:
        """Everybody joins, topics are made and read, events are injected, all becomes quiet."""
        interval_s = self.scenario.network.join_interval_ms / 1000
        at_s = self.simulation.at_s
        for number, node in enumerate(self.nodes):
            at_s(number * interval_s, partial(self._start, node))
        first_s, last_s = self.scenario.publishing_s
        joined_s = (len(self.nodes) - 1) * interval_s
        at_s(joined_s + (first_s - joined_s) * CREATED_PART, self.create_topics)
        at_s(joined_s + (first_s - joined_s) * SUBSCRIBED_PART, self.begin_reading)
        at_s((first_s + last_s) / 2, self._kill)
        self._plan_event(0, first_s)
        self.simulation.run_until_s(self.scenario.end_s)

    def running(self) -> list[int]:
        """The numbers of the nodes that run."""
        return [number for number, node in enumerate(self.nodes) if node.host is not None]

    # What each system does in its own way

    @abstractmethod
    def make_machines(self, number: int, node: SimNode) -> Sequence[Machine]:
        """The machines of a new incarnation."""

    @abstractmethod
    def create_topics(self) -> None:
        """Authors make their topics known."""

    @abstractmethod
    def begin_reading(self) -> None:
        """Everybody subscribes."""

    @abstractmethod
    def publish(self, node: SimNode, topic: int, payload: bytes, event: int) -> None:
        """The application on a running node publishes an event."""

    @abstractmethod
    def told(self, number: int, event: Any) -> None:
        """An application was told something by its node."""

    @abstractmethod
    def sort_message(self, message: Any) -> Mapping[str, int]:
        """What a message on a link counts as: "rpc" or "dht", the same with a slash and its kind,
        and "topic N" if it is of one."""

    @abstractmethod
    def state_bytes(self, node: SimNode) -> tuple[int, int]:
        """About what a running node holds: for its topics, and for the DHT."""

    # Nodes and injectors

    def _add(self, number: int, key: PrivateKey) -> SimNode:
        # Every node has an address prefix of its own: the DHT limits how many share one.
        address = f"ws://10.{number >> 8 & 255}.{number & 255}.1:4000"
        self.contacts.append(Contact(key.address, (address,)))
        node = self.simulation.add_node(key.address, partial(self.make_machines, number))
        node.listeners.append(partial(self.told, number))
        return node

    def _start(self, node: SimNode) -> None:
        if node.host is None:  # unless a fault was quicker
            node.start()

    def _plan_event(self, event: int, first_s: float) -> None:
        if event < len(self.workload.events):
            when_s = first_s + self.workload.events[event].at_ms / 1000
            self.simulation.at_s(when_s, partial(self._inject, event, first_s))

    def _inject(self, event: int, first_s: float) -> None:
        self._plan_event(event + 1, first_s)
        plan = self.workload.events[event]
        author = self.nodes[plan.author]
        if author.host is None:
            others = self.ledger.readers_of(plan.topic, self.running())
            if not others:
                return
            author = self.nodes[self._rng.choice(others)]
        filling = self._rng.randbytes(max(0, plan.size_bytes - NUMBER_BYTES))
        self.ledger.issue(event, self.simulation.scheduler.now_ns)
        self.publish(author, plan.topic, payload_of(event, filling), event)

    def _kill(self) -> None:
        authors = {topic.author for topic in self.workload.topics}
        victims = [n for n in self.running() if self.options.kill_authors or n not in authors]
        drawn = self.simulation.random("kills").sample(
            victims, min(self.options.kills, len(victims))
        )
        for number in drawn:
            self.nodes[number].crash()
        if drawn:
            now_ns = self.simulation.scheduler.now_ns
            record = FaultInjected("kill", f"{len(drawn)} nodes for good")
            self.simulation.trace.add(now_ns, self.nodes[0].id, record)

    @property
    def created_ms(self) -> int:
        """When topics are said to be made: the beginning of the simulation."""
        return self.simulation.scheduler.now_ns // MS_NS


def _workload(scenario: Scenario, options: TopicsOptions, rng: Random) -> Workload:
    nodes, events = scenario.network.nodes, scenario.messages
    interval_ms, injectors = scenario.workload.interval_ms, options.injectors
    if options.workload is not None:
        return load_workload(
            options.workload,
            rng,
            nodes=nodes,
            events=events,
            interval_ms=interval_ms,
            injectors=injectors,
        )
    return make_workload(
        rng,
        nodes=nodes,
        topics=options.topics,
        events=events,
        size_bytes=scenario.workload.size_bytes,
        interval_ms=interval_ms,
        injectors=injectors,
    )


# What a scenario of durable topics may ask for besides network, workload and faults.


System = Literal["topics", "floodsub"]


class TopicsOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[options] of these experiments."""

    system: System = "topics"
    """Ours, or libp2p's Floodsub as a baseline: see floodsub.py."""

    ordered: bool = False
    """Only a topic's author publishes in it, and all others ask it to: one chain of events. If not,
    everybody publishes after the last event seen. Floodsub has no order."""

    slow: bool = False
    """Every message takes 500 ms longer, give or take 300, as in the disturbed runs of the
    sources; dials and handshakes take 500 ms longer each way."""

    topics: Annotated[int, Meta(ge=1, le=NODES_MAX)] = TOPICS

    workload: str | None = None
    """A folder that `shoal pipeline reddit` wrote: its topics, readers and first `messages` events
    take the place of drawn ones, and `topics` and `size_bytes` say nothing."""

    workload_digest: str | msgspec.UnsetType = msgspec.UNSET
    """Of that folder's tables, filled in when it is read: other tables are another run."""

    injectors: Annotated[int, Meta(ge=1, le=NODES_MAX)] = INJECTORS

    kills: Annotated[int, Meta(ge=0, le=NODES_MAX)] = 0
    """So many nodes die in the middle of publishing, for good."""

    kill_authors: bool = False
    """Whether authors of topics are among those. An ordered topic ends with its author."""

    neighbours: Annotated[int, Meta(ge=1, le=NODES_MAX)] = 10
    """Of a Floodsub node, drawn at random; it has this many in the mean."""

    def __post_init__(self) -> None:
        if self.system == "floodsub" and self.ordered:
            raise ConfigError(
                "ordered = true: Floodsub knows no order: write false, or system = 'topics'"
            )


def pin_workload(options: TopicsOptions | None) -> TopicsOptions | None:
    """With the whole path of a workload, and the digest of its tables; ConfigError if these are
    others by now."""
    if options is None or options.workload is None:
        return options
    digest, known = digest_workload(options.workload), options.workload_digest
    if known not in (msgspec.UNSET, digest):
        raise ConfigError(
            f"options.workload_digest = {known!r}: {options.workload} has other tables by now, "
            f"with {digest}: put the old ones back, or begin anew"
        )
    whole = str(Path(options.workload).absolute())
    return msgspec.structs.replace(options, workload=whole, workload_digest=digest)


def options_of(scenario: Scenario) -> TopicsOptions:
    """The options of a scenario, also of one that was not read from a file."""
    return scenario.options or TopicsOptions()


# The links of these experiments: slow ones, and a meter on each.


SLOW_NS = 500 * MS_NS
JITTER_NS = 300 * MS_NS


class SlowDelay:
    """Another model's delays, and half a second more."""

    def __init__(self, delays: DelayModel) -> None:
        self._delays = delays

    def one_way_ns(self, sender: int, receiver: int) -> int:
        return self._delays.one_way_ns(sender, receiver) + SLOW_NS

    def region(self, node: int) -> str:
        return self._delays.region(node)


class EvenJitter(Shaper):
    """Up to 300 ms sooner or later; order is kept. For links that are slow already."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def shape(self, end: LinkEnd, frame: Frame, arrivals_ns: list[int]) -> list[int]:
        return [t + self._rng.randint(-JITTER_NS, JITTER_NS) for t in arrivals_ns]


Sort = Callable[[Any], Mapping[str, int]]
"""What a message counts as: names, and how many of each."""


class Meter(Shaper):
    """Counts what is sent, and what of it arrives unless its link breaks before."""

    keeps_order = False  # behind all others, whose word on arrivals is final then

    def __init__(self, sort: Sort) -> None:
        self.sent: dict[NodeId, Counter[str]] = {}
        self.received: dict[NodeId, Counter[str]] = {}
        self.bytes = 0
        self._sort = sort
        self._frame: Frame | None = None
        self._counts: Mapping[str, int] = {}

    def shape(self, end: LinkEnd, frame: Frame, arrivals_ns: list[int]) -> list[int]:
        if frame is not self._frame:  # one frame goes to many peers
            self._frame, self._counts = frame, self._sort(frame.message)
        self.bytes += frame.size_bytes
        _add(self.sent, end.host.node, self._counts)
        if arrivals_ns:
            _add(self.received, end.peer, self._counts)
        return arrivals_ns


def _add(totals: dict[NodeId, Counter[str]], node: NodeId, counts: Mapping[str, int]) -> None:
    total = totals.get(node)
    if total is None:
        total = totals[node] = Counter()
    for name, count in counts.items():
        total[name] += count
