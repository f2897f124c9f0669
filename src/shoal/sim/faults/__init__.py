"""Faults, each its own small class, combinable in a scenario.

[[faults]]
kind = "loss"
probability = 0.01
start_s = 10
end_s = 20
"""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.base.errors import ConfigError
from shoal.sim.faults.bandwidth import Bandwidth
from shoal.sim.faults.base import Fault
from shoal.sim.faults.churn import Churn
from shoal.sim.faults.clock_drift import ClockDrift
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
    | Crash
    | Duplication
    | Jitter
    | Loss
    | Partition
    | Reordering
    | ServiceTime
)


def parse_fault(table: Any) -> Fault:
    """One [[faults]] table of a scenario."""
    try:
        fault: Fault = msgspec.convert(table, AnyFault, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"fault {table!r}: {error}") from error
    return fault


__all__ = [
    "AnyFault",
    "Bandwidth",
    "Churn",
    "ClockDrift",
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
