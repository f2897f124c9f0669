"""The virtual-time driver: thousands of nodes in one process, any fault, one seed, one trace.

Begin with `simulation.py`, the network and its time, then `host.py` (a node), `links.py` (what
happens to a message on its way) and `faults.py`. It knows no protocol and no file.
"""

from shoal.sim.delays import ConstantDelay, RegionDelay, RegionTable, load_table
from shoal.sim.host import SimNode
from shoal.sim.simulation import Simulation, SimulationFailure, stable_random

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
