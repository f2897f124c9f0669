"""The asyncio driver: the same machines over real sockets, clocks, threads and disks.

Begin with `host.py`: it carries out effects, and turns what links, timers and workers say into
inputs. `duplicate_links.py` decides which of two connections to a peer is kept, `workers.py` takes
disk batches and signature checks off the event loop. It knows no protocol.
"""

from shoal.runtime.host import RuntimeHost

__all__ = ["RuntimeHost"]
