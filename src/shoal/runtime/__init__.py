"""The asyncio driver: the same machines over real sockets."""

from shoal.runtime.host import RuntimeHost

__all__ = ["RuntimeHost"]
