"""The virtual-time driver: the same machines, thousands of nodes, any fault, one seed."""

from shoal.sim.delays import ConstantDelay, RegionDelay, RegionTable, load_table
from shoal.sim.randomness import stable_random
from shoal.sim.simulation import SimNode, Simulation, SimulationFailure

__all__ = [
    "ConstantDelay",
    "RegionDelay",
    "RegionTable",
    "SimNode",
    "Simulation",
    "SimulationFailure",
    "load_table",
    "stable_random",
]
