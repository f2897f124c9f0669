"""Scenarios: what an experiment runs, as a TOML file.

    name = "my-experiment"
    about = "what it shows"
    seed = 1

    [network]               # who takes part, and how far apart they are
    nodes = 64
    delays = "aws"

    [workload]              # what they publish
    messages = 100

    [[faults]]              # what goes wrong, and when; any number of these
    kind = "loss"
    probability = 0.01
    start_s = 10
    end_s = 20

All fields but those of faults have defaults; a field that does not exist is an error. A list where
one value is expected makes a sweep of it, and `repeats` more runs of each point: see plan.py.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shoal.base.errors import ConfigError, NotFound
from shoal.base.settings_errors import explain, instead_of
from shoal.base.units import ns_of_ms, ns_of_seconds
from shoal.identity.message_body import CONTENT_BYTES_MAX
from shoal.protocols.streams.commands import RedundantFeeds
from shoal.protocols.streams.config import DEGREE_DEFAULT, DEGREE_MAX
from shoal.sim.delays import (
    BUILT_IN,
    ConstantDelay,
    DelayModel,
    RegionDelay,
    digest_table,
    load_table,
)
from shoal.sim.faults import (
    AnyFault,
    Bandwidth,
    Churn,
    ClockDrift,
    ClockStep,
    Crash,
    Loss,
    Partition,
    parse_fault,
)
from shoal_lab.scenarios.experiment_kinds import find_kind
from shoal_lab.scenarios.overrides import apply_overrides, key_of

Lie = Literal["near", "club", "shy"]
"""What they say: that everybody is near; that the others of their kind are; or that everybody is
but those, so that they are linked to the honest."""

# The [[faults]] of a scenario: what is wrong with them, and which of them could hit nobody.


TIME_S_MAX = 1e8  # three years


def parse_faults(tables: Any) -> tuple[AnyFault, ...]:
    """The faults of a scenario file; ConfigError says which one is wrong."""
    if not isinstance(tables, list | tuple):
        raise ConfigError(f"faults = {tables!r}: write [[faults]] tables")
    faults: list[Any] = []
    for number, table in enumerate(tables):
        try:
            fault = parse_fault(table)
        except ConfigError as error:
            raise ConfigError(f"faults.{number}: {error}") from error
        for name, when_s in (("start_s", fault.start_s), ("end_s", fault.end_s)):
            # A comparison that NaN fails, as infinity does.
            if when_s is not None and not 0 <= when_s <= TIME_S_MAX:
                raise ConfigError(
                    f"faults.{number}.{name} = {when_s}: expected 0 to {TIME_S_MAX:g}"
                )
        faults.append(fault)
    return tuple(faults)


def check_faults(scenario: Scenario, roles: Sequence[str]) -> None:
    """ConfigError if a fault would never happen: a run that stood it would have stood nothing."""
    for number, fault in enumerate(scenario.faults):
        where = f"faults.{number}"
        role = getattr(fault, "role", roles[0])  # those of links hit everybody
        if role not in roles:
            raise ConfigError(
                f"{where}.role = {role!r}: no node has this role: {instead_of(role, roles)}"
            )
        if fault.start_s >= scenario.end_s:
            raise ConfigError(
                f"{where}.start_s = {fault.start_s:g}: the run is over at {scenario.end_s:g} s: "
                "let it begin earlier, or the run last longer"
            )
        if isinstance(fault, Crash) and not ns_of_seconds(fault.start_s):
            # The first of every role starts at 0, after the faults of that moment.
            raise ConfigError(
                f"{where}.start_s = {fault.start_s:g}: no {role} runs yet, so that none would die: "
                f"let it begin later; from {scenario.joined_s:g} s on all of them run"
            )
        if isinstance(fault, Partition):
            _check_regions(f"{where}.regions", fault.regions, scenario.network.delays)


def _check_regions(where: str, regions: Sequence[str], delays: str | float) -> None:
    if not regions:
        return  # a table can be large
    known = load_table(delays).names if isinstance(delays, str) else (ConstantDelay().region(0),)
    for region in regions:
        if region not in known:
            raise ConfigError(
                f"{where} = {list(regions)}: network.delays = {delays!r} has no region {region!r}: "
                f"{instead_of(region, known)}"
            )


NODES_MAX = 1_000_000  # more do not fit into the memory of one machine
TRACKERS_MAX = 100
MESSAGES_MAX = 10_000_000
DEGREE_MIN = 3  # below it, overlays fall apart under bursts of crashes
HARMLESS_OFFSET_MS = 20_000.0  # two clocks this far off, each its way, are still within a minute
TIME_MS_MAX = 1e9

COUNTS = ("messages", "messages_per_node")
"""Two ways to say how much is published: a scenario has one of them."""

Seconds = Annotated[float, Meta(ge=0, le=TIME_S_MAX)]
Milliseconds = Annotated[float, Meta(ge=0, le=TIME_MS_MAX)]


class NetworkSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who takes part, and how far apart they are."""

    nodes: Annotated[int, Meta(ge=1, le=NODES_MAX)] = 64

    delays: str | Milliseconds = "aws"
    """A table that ships with Shoal, a TSV file with one, or milliseconds between any two nodes."""

    delays_digest: str | msgspec.UnsetType = msgspec.UNSET
    """Of the bytes of a TSV file, found out when a scenario is read: no other table will do."""

    degree: Annotated[int, Meta(ge=DEGREE_MIN, le=DEGREE_MAX)] = DEGREE_DEFAULT

    policy: Literal["random", "near-half", "aware"] = "random"
    """How the tracker chooses links: blindly, by true delays that only a simulation knows (the
    literature's baseline), or by what nodes measure."""

    redundant_feeds: RedundantFeeds = "all"
    """How many neighbours besides the fastest send a node each publisher's messages."""

    trackers: Annotated[int, Meta(ge=1, le=TRACKERS_MAX)] = 1

    join_interval_ms: Milliseconds = 10.0

    liars: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """What part of the nodes lies to the tracker about round trips; in the simulator only."""

    lie: Lie = "near"
    """And what they say: see liars.py."""

    wire: bool = False
    """Every message goes through its codec, as bytes."""


class WorkloadSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is published, and when."""

    messages: Annotated[int, Meta(ge=0, le=MESSAGES_MAX)] = 100

    messages_per_node: Annotated[int, Meta(ge=0, le=MESSAGES_MAX)] | None = None
    """So many for each node that there is, in place of `messages`: for sweeps over sizes."""

    size_bytes: Annotated[int, Meta(ge=0, le=CONTENT_BYTES_MAX)] = 300

    interval_ms: Milliseconds = 100.0

    publishers: Literal["random", "in-turn"] = "random"
    """Any node each time, or one after the other."""

    publisher_count: Annotated[int, Meta(ge=1, le=NODES_MAX)] | None = None
    """So many nodes publish, drawn at random; none: all of them."""

    settle_s: Seconds = 30.0
    """Quiet time between the last join and the first message; also what faults get to heal."""

    drain_s: Seconds = 10.0
    """Quiet time after the last message, before liveness is checked."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One experiment, but for its seed."""

    name: str
    about: str = ""
    protocol: str = "streams"
    experiment: str = "delivery"
    """What is looked at: the two of them name the kind of experiment (kinds.py)."""
    seed: Annotated[int, Meta(ge=0)] = 1
    network: NetworkSettings = NetworkSettings()
    workload: WorkloadSettings = WorkloadSettings()
    faults: tuple[AnyFault, ...] = ()

    prediction: bool = False
    """Before the first message the tracker is asked for its estimate, to be held against what
    messages take."""

    on: Literal["simulator", "sockets"] = "simulator"
    """Under virtual time, or over real connections on this machine in real time."""

    options: Any = None
    """What this kind of experiment alone can be told: a struct of its own."""

    @property
    def messages(self) -> int:
        """How many are published in all."""
        each = self.workload.messages_per_node
        return self.workload.messages if each is None else each * self.network.nodes

    @property
    def joined_s(self) -> float:
        """When the last node starts; the first does at 0, and so do trackers."""
        return (self.network.nodes - 1) * self.network.join_interval_ms / 1000

    @property
    def publishing_s(self) -> tuple[float, float]:
        """When the first message is due, and the last."""
        first_s = self.joined_s + self.workload.settle_s
        return first_s, first_s + max(0, self.messages - 1) * (self.workload.interval_ms / 1000)

    @property
    def healed_s(self) -> float:
        """From when on nothing is lost any more: 0 without faults that lose data, infinite if
        one of them lasts."""
        ends_s = [end_s for fault in self.faults if (end_s := _loses_until_s(fault)) is not None]
        return max(ends_s) + self.workload.settle_s if ends_s else 0.0

    @property
    def end_s(self) -> float:
        """When the run is over: everything sent, every fault healed, and then the drain."""
        ends_s = [fault.end_s for fault in self.faults if fault.end_s is not None]
        settled_s = max(ends_s) + self.workload.settle_s if ends_s else 0.0
        quiet_s = self.healed_s if math.isfinite(self.healed_s) else 0.0
        return max(self.publishing_s[1], settled_s, quiet_s) + self.workload.drain_s


def load_scenario(path: Path, overrides: Sequence[str] = ()) -> Scenario:
    """Read a scenario file, with KEY=VALUE overrides; ConfigError says what is wrong, and where.

    For one run: a sweep is read by load_plan.
    """
    table = read_scenario(path, overrides)
    table.pop("repeats", None)
    return parse_scenario(table, str(path))


def read_scenario(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The tables of a scenario file, with overrides in their place, and nothing checked yet."""
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: no scenario can be read from it: {error}") from error
    table.setdefault("name", path.stem)
    _resolve_delays(table, path.parent)
    _make_room(table, overrides)
    return apply_overrides(table, overrides, short_forms())


def parse_scenario(table: dict[str, Any], source: str) -> Scenario:
    """A scenario from the tables of its file."""
    apart = ("faults", "options")
    rest = {key: value for key, value in table.items() if key not in apart}
    try:
        scenario = msgspec.convert(rest, Scenario, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {explain(error, table, Scenario)}") from error
    try:
        _refuse_both_counts(table.get("workload", {}))
        kind = find_kind(scenario.protocol, scenario.experiment)
        options = kind.parse_options(table.get("options", {}))
        faults = parse_faults(table.get("faults", ()))
        scenario = msgspec.structs.replace(scenario, faults=faults, options=options)
        kind.runs_on(scenario)
        scenario = pin_files(scenario)
        check_faults(scenario, kind.roles)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    return scenario


@cache
def short_forms() -> Mapping[str, str]:
    """Fields that need not be called by their table: `nodes` is `network.nodes`."""
    tables = {"network": NetworkSettings, "workload": WorkloadSettings}
    return {
        field: f"{table}.{field}"
        for table, struct in tables.items()
        for field in struct.__struct_fields__
        if field not in Scenario.__struct_fields__
    }


def delay_model(delays: str | float) -> DelayModel:
    """What a scenario's `delays` stands for."""
    if not isinstance(delays, str):
        return ConstantDelay(ns_of_ms(delays))
    try:
        return RegionDelay(load_table(delays))
    except ConfigError as error:
        raise ConfigError(f"network.delays = {delays!r}: {error}") from error


def pin_files(scenario: Scenario) -> Scenario:
    """With the whole paths of all files that it names, and digests of what is in them."""
    kind = find_kind(scenario.protocol, scenario.experiment)
    pinned = pin_delays(scenario)
    return msgspec.structs.replace(pinned, options=kind.pin_options(pinned.options))


def pin_delays(scenario: Scenario) -> Scenario:
    """With the whole path of a table from a file, and its digest; ConfigError if the file has
    another by now."""
    network = scenario.network
    delays, known = network.delays, network.delays_digest
    if not isinstance(delays, str) or delays in BUILT_IN:
        if known is not msgspec.UNSET:
            raise ConfigError(
                f"network.delays_digest = {known!r}: network.delays = {delays!r} comes from no "
                "file: leave the digest out"
            )
        return scenario
    try:
        digest = digest_table(delays)
    except ConfigError as error:
        raise ConfigError(f"network.delays = {delays!r}: {error}") from error
    if known not in (msgspec.UNSET, digest):
        raise ConfigError(
            f"network.delays_digest = {known!r}: {delays} is another table by now, with {digest}: "
            "put the old one back, or begin anew"
        )
    # Executors, and whoever reads the settings of a run, are in other folders than we are.
    whole = str(Path(delays).absolute())
    pinned = msgspec.structs.replace(network, delays=whole, delays_digest=digest)
    return msgspec.structs.replace(scenario, network=pinned)


def _make_room(table: dict[str, Any], overrides: Sequence[str]) -> None:
    """An override of one count takes the place of the other one in the file."""
    workload = table.get("workload")
    given = {key_of(override, short_forms()) for override in overrides}
    if isinstance(workload, dict):
        for one, other in (COUNTS, COUNTS[::-1]):
            if f"workload.{one}" in given:
                workload.pop(other, None)


def _refuse_both_counts(workload: Mapping[str, Any]) -> None:
    if all(count in workload for count in COUNTS):
        told = " and ".join(f"workload.{count} = {workload[count]}" for count in COUNTS)
        raise ConfigError(f"{told}: leave one of them out")


def _resolve_delays(table: dict[str, Any], folder: Path) -> None:
    """A table named in a file lies beside that file, wherever the command is run."""

    def resolved(delays: Any) -> Any:
        if isinstance(delays, list):
            return [resolved(one) for one in delays]
        beside = isinstance(delays, str) and delays not in BUILT_IN and (folder / delays).is_file()
        return str(folder / delays) if beside else delays

    network = table.get("network")
    if isinstance(network, dict) and "delays" in network:
        table["network"] = {**network, "delays": resolved(network["delays"])}


def _loses_until_s(fault: AnyFault) -> float | None:
    """When a fault stops losing messages; None if it never begins to."""
    match fault:
        case Crash():
            # Whoever stays dead is out of the overlay soon after; the rest is repaired.
            return max(fault.start_s + fault.detect_s, fault.end_s or 0.0)
        case Churn():
            return math.inf if fault.end_s is None else fault.end_s + fault.detect_s
        case ClockDrift(offset_ms=offset_ms):
            if offset_ms <= HARMLESS_OFFSET_MS:
                return None
            return math.inf if fault.end_s is None else fault.end_s
        case ClockStep(step_s=step_s):
            if abs(step_s) * 1000 <= HARMLESS_OFFSET_MS:
                return None
            return math.inf if fault.end_s is None else fault.end_s
        case Bandwidth() | Loss() | Partition():
            return math.inf if fault.end_s is None else fault.end_s
    return None


# Where scenarios are found: by path, or by name among those that come with Shoal.


_PACKAGE = Path(__file__).parent


def scenario_folder() -> Path:
    """The scenarios of this copy of Shoal: beside the code in a wheel, else in the source tree."""
    shipped = _PACKAGE / "scenarios_data"
    return shipped if shipped.is_dir() else _PACKAGE.parents[2] / "scenarios"


def list_scenarios() -> list[Path]:
    """The files of all scenarios that come with Shoal, by name."""
    return sorted(scenario_folder().glob("*.toml"))


def find_scenario(name: str) -> Path:
    """The file of a scenario, given its path or its name; NotFound lists what there is."""
    path = Path(name)
    if path.suffix == ".toml" or len(path.parts) > 1:
        if path.is_file():
            return path
        raise NotFound(f"no scenario file {name}: `shoal lab list` shows those that have a name")
    known = {file.stem: file for file in list_scenarios()}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    guess = f" did you mean {near[0]}?" if near else ""
    raise NotFound(f"no scenario {name!r}:{guess} there are {', '.join(known) or 'none'}")
