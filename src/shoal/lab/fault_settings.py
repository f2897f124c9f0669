"""The [[faults]] of a scenario: what is wrong with them, and which of them could hit nobody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shoal.base.errors import ConfigError
from shoal.base.settings_errors import instead_of
from shoal.base.units import ns_of_seconds
from shoal.sim.delays import ConstantDelay, load_table
from shoal.sim.faults import AnyFault, Crash, Partition, parse_fault

if TYPE_CHECKING:
    from shoal.lab.scenario import Scenario

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
