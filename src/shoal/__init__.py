"""Shoal: decentralised publish/subscribe and search, and a lab to measure it.

async with shoal.Node.open("shoal.toml") as node:
    stream = await node.create_stream("/city/vehicles")
    async with stream.subscribe() as messages:
        await stream.publish({"vehicle": 12, "speed": 8.3})
        async for message in messages:
            break
"""

from typing import TYPE_CHECKING, Any

from shoal.base.errors import (
    ConfigError,
    HistoryUnavailable,
    IdentityError,
    NotFound,
    OffsetExpired,
    RemoteError,
    ShoalError,
    UsageError,
)

if TYPE_CHECKING:
    from shoal.node import Gap, Last, Message, NetworkFile, Node, Stream, Subscription

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "Gap",
    "HistoryUnavailable",
    "IdentityError",
    "Last",
    "Message",
    "NetworkFile",
    "Node",
    "NotFound",
    "OffsetExpired",
    "RemoteError",
    "ShoalError",
    "Stream",
    "Subscription",
    "UsageError",
]


def __getattr__(name: str) -> Any:
    """The node and its sockets are loaded when they are used: not for `shoal --help`."""
    if name not in __all__:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    import shoal.node

    return getattr(shoal.node, name)
