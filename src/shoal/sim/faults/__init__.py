"""Faults, each its own small class, combinable in a scenario.

[[faults]]
kind = "loss"
probability = 0.01
start_s = 10
end_s = 20
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from shoal.base.errors import ConfigError
from shoal.base.settings_errors import explain, instead_of
from shoal.sim.faults.bandwidth import Bandwidth
from shoal.sim.faults.base import Fault
from shoal.sim.faults.churn import Churn
from shoal.sim.faults.clock_drift import ClockDrift
from shoal.sim.faults.clock_step import ClockStep
from shoal.sim.faults.crash import Crash
from shoal.sim.faults.duplication import Duplication
from shoal.sim.faults.jitter import Jitter
from shoal.sim.faults.loss import Loss
from shoal.sim.faults.partition import Partition
from shoal.sim.faults.reordering import Reordering
from shoal.sim.faults.service_time import ServiceTime

AnyFault = (
    Bandwidth
    | Churn
    | ClockDrift
    | ClockStep
    | Crash
    | Duplication
    | Jitter
    | Loss
    | Partition
    | Reordering
    | ServiceTime
)

_BY_KIND: dict[Any, type[Fault]] = {
    fault.__struct_config__.tag: fault for fault in get_args(AnyFault)
}


def parse_fault(table: Any) -> Fault:
    """One [[faults]] table of a scenario; ConfigError says what is wrong."""
    if not isinstance(table, dict):
        raise ConfigError(f"{table!r}: write a [[faults]] table")
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in _BY_KIND:
        remedy = instead_of(str(kind), _BY_KIND)
        raise ConfigError(f"kind = {kind!r}: no such fault: {remedy}")
    try:
        return msgspec.convert(table, _BY_KIND[kind], strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(explain(error, table, _BY_KIND[kind])) from error


__all__ = [
    "AnyFault",
    "Bandwidth",
    "Churn",
    "ClockDrift",
    "ClockStep",
    "Crash",
    "Duplication",
    "Fault",
    "Jitter",
    "Loss",
    "Partition",
    "Reordering",
    "ServiceTime",
    "parse_fault",
]
