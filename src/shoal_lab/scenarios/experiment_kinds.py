"""The kinds of experiment, by protocol and name; the runner knows no others.

A new kind is one `ExperimentKind` and one line in `_BUILT_IN`, or a call of `register_kind`. What
runs under virtual time gets its `run` from `simulated.py`; whatever else computes something gives
an `Outcome` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa

from shoal.base.errors import ConfigError, UsageError
from shoal.base.settings_errors import explain

if TYPE_CHECKING:
    from shoal_lab.scenarios.scenario import Scenario

PASSED = "passed"
OFF = "off"

Tables = Callable[[], Mapping[str, pa.Table]]
"""Makes the tables of a run; any thread may call it, once."""

Rows = list[tuple[str, str]]

# Settings that several kinds go by, for their `reads`.
JOINING = frozenset({"nodes", "delays", "delays_digest", "join_interval_ms"})
PUBLISHING = frozenset(
    {"messages", "messages_per_node", "size_bytes", "interval_ms", "settle_s", "drain_s"}
)


class RunProgress(msgspec.Struct, frozen=True):
    """How far a run is."""

    done: float
    end: float
    events: int
    fraction: float
    """An estimate, below 1 while the run goes on."""
    unit: str = "s simulated"

    @property
    def said(self) -> str:
        """In words."""
        return f"{self.done:.0f} of {self.end:.0f} {self.unit}"


Progress = Callable[[RunProgress], None]


class Checks(msgspec.Struct, frozen=True):
    """What was checked: "passed", "off" if --check would, or why not. A failed check is a
    SimulationFailure."""

    safety: str
    liveness: str

    @property
    def complete(self) -> bool:
        """Whether all was checked that can be."""
        return OFF not in (self.safety, self.liveness)


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One run that is wanted."""

    scenario: Scenario
    seed: int
    check: bool | None = None
    """Safety and liveness, or neither; None: what the kind does by itself."""
    replay: str = ""
    record: bool = False
    """Whether its tables are wanted."""
    progress: Progress | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run gave."""

    figures: msgspec.Struct
    trace_hash: str
    """Of all that happened: equal runs have equal ones."""
    events: int
    records: int
    cpu_seconds: float
    simulated_seconds: float
    checks: Checks
    tables: Callable[[str], Tables] | None = None
    """Given the name of the run, takes all that must be taken at once."""


class ExperimentKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of experiment."""

    name: str
    run: Callable[[RunRequest], Outcome]
    figures: type[msgspec.Struct]
    """What its outcomes hold, so that a result can be read again."""
    rows: Callable[[Any], Rows]
    """Its figures for people, as names and values."""
    line: Callable[[Any], str]
    """The same in one line, for sweeps."""
    cost: Callable[[Scenario], float]
    """About how long a run takes, in any unit: for the order of runs, and the time left."""
    reads: frozenset[str] = frozenset()
    """The fields of network and workload that it goes by, and "faults" and "prediction" if it does:
    a scenario that sets another is refused."""
    roles: tuple[str, ...] = ("node",)
    """Whom faults can hit."""
    options: type[msgspec.Struct] | None = None
    pin_options: Callable[[Any], Any] = lambda options: options
    """Options that name files: with whole paths, and digests of what is in the files now."""
    over_sockets: Callable[[RunRequest], Outcome] | None = None
    """The same over real connections, if there is such a thing."""
    reads_over_sockets: frozenset[str] = frozenset()
    in_real_time: bool = False
    """Whether its runs are real ones wherever they are: over kernels of this machine, one at a
    time."""

    def runs_on(self, scenario: Scenario) -> Callable[[RunRequest], Outcome]:
        """What runs this scenario where it says; ConfigError if nothing can, or if that takes no
        notice of a setting."""
        if scenario.on == "simulator":
            self._refuse_unread(scenario, self.reads, self.name)
            return self.run
        if self.over_sockets is None:
            raise ConfigError(f"on = {scenario.on!r}: {self.name} runs on the simulator only")
        self._refuse_unread(scenario, self.reads_over_sockets, f"{self.name} over {scenario.on}")
        return self.over_sockets

    def _refuse_unread(self, scenario: Scenario, reads: frozenset[str], who: str) -> None:
        unread = [one for one in _chosen(scenario) if one.field not in reads]
        if unread:
            told = ", ".join(f"{one.key} = {one.value}" for one in unread)
            simulated = all(one.field in self.reads for one in unread)
            elsewhere = ", or write on = 'simulator'" if simulated else ""
            raise ConfigError(f"{told}: {who} takes no notice of that: leave it out{elsewhere}")

    def takes_real_time(self, scenario: Scenario) -> bool:
        """Whether a run of this scenario needs this machine, and as much of it as there is."""
        return self.in_real_time or scenario.on != "simulator"

    def parse_options(self, table: Any) -> msgspec.Struct | None:
        """The [options] of a scenario; ConfigError says what is wrong."""
        if self.options is None:
            if table:
                raise ConfigError(f"options = {table!r}: {self.name} has none: remove them")
            return None
        try:
            return msgspec.convert(table, self.options, strict=True)
        except msgspec.ValidationError as error:
            told = explain(error, table, self.options)
            raise ConfigError(f"options.{told}") from error


class _Chosen(NamedTuple):
    """A setting that is not as it is by default."""

    field: str
    key: str
    """With the table it is in."""
    value: str
    """As it is shown."""


def _chosen(scenario: Scenario) -> Iterator[_Chosen]:
    for table in ("network", "workload"):
        settings = getattr(scenario, table)
        usual = type(settings)()
        for field in settings.__struct_fields__:
            value = getattr(settings, field)
            if value != getattr(usual, field):
                yield _Chosen(field, f"{table}.{field}", repr(value))
    if scenario.faults:
        yield _Chosen("faults", "faults", f"{len(scenario.faults)} tables")
    if scenario.prediction:
        yield _Chosen("prediction", "prediction", "True")


_registered: dict[str, ExperimentKind] = {}


def register_kind(kind: ExperimentKind) -> None:
    """Make one more kind known; UsageError if its name is taken."""
    if kind.name in kind_names():
        raise UsageError(f"experiment {kind.name} is registered already: choose another name")
    _registered[kind.name] = kind


def kind_names() -> tuple[str, ...]:
    """Of all that there are, as protocol/experiment."""
    return (*_BUILT_IN, *_registered)


def find_kind(protocol: str, experiment: str) -> ExperimentKind:
    """The kind of a scenario; ConfigError lists those that there are."""
    name = f"{protocol}/{experiment}"
    if name in _registered:
        return _registered[name]
    if name in _BUILT_IN:
        return _built_in(name)
    pairs = [known.split("/") for known in kind_names()]
    of_protocol = [name for known, name in pairs if known == protocol]
    if of_protocol:
        there = ", ".join(of_protocol)
        raise ConfigError(f"experiment = {experiment!r}: of {protocol} there are {there}")
    there = ", ".join(dict.fromkeys(known for known, _ in pairs))
    raise ConfigError(f"protocol = {protocol!r}: no such protocol: there are {there}")


# Where each is. One that nobody runs is not loaded: each process of a sweep would wait for it, and
# experiments are made of scenarios, which need to know their kind.
_BUILT_IN = {
    "streams/delivery": "shoal_lab.experiments.streams.delivery:DELIVERY",
    "streams/randomness": "shoal_lab.experiments.overlays.randomness:RANDOMNESS",
    "streams/diameter": "shoal_lab.experiments.overlays.diameter:DIAMETER",
    "streams/loss": "shoal_lab.experiments.loss.experiment:LOSS",
    "topics/reddit": "shoal_lab.experiments.topics.experiment:REDDIT",
    "search/model": "shoal_lab.experiments.search_model.study:MODEL",
    "search/match": "shoal_lab.experiments.search.match:MATCH",
    "search/measurement": "shoal_lab.experiments.search.measurement:MEASUREMENT",
    "search/churn": "shoal_lab.experiments.search.churn:CHURN",
    "search/watch": "shoal_lab.experiments.search.watches:WATCH",
}


def _built_in(name: str) -> ExperimentKind:
    module, _, constant = _BUILT_IN[name].partition(":")
    kind = getattr(import_module(module), constant)
    assert isinstance(kind, ExperimentKind)
    assert kind.name == name
    return kind
