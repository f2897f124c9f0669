"""Shoal: decentralised publish/subscribe and search, and a lab to measure it.

async with shoal.Node.open("shoal.toml") as node:
    stream = await node.create_stream("/city/vehicles")
    async with stream.subscribe() as messages:
        await stream.publish({"vehicle": 12, "speed": 8.3})
        async for message in messages:
            break
    topic = await node.create_topic("news", publishers=shoal.ANYONE)
    event = await topic.publish(b"durable")
    await event.stored(replicas=5)
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
    TopicUnavailable,
    UsageError,
)

if TYPE_CHECKING:
    from shoal.node import (
        ANYONE,
        CUSTOM,
        LAST_SEEN,
        NOBODY,
        Event,
        Gap,
        Last,
        Message,
        NetworkFile,
        Node,
        PublishedEvent,
        Stream,
        Subscription,
        Topic,
        TopicSubscription,
    )

__version__ = "0.1.0"

__all__ = [
    "ANYONE",
    "CUSTOM",
    "LAST_SEEN",
    "NOBODY",
    "ConfigError",
    "Event",
    "Gap",
    "HistoryUnavailable",
    "IdentityError",
    "Last",
    "Message",
    "NetworkFile",
    "Node",
    "NotFound",
    "OffsetExpired",
    "PublishedEvent",
    "RemoteError",
    "ShoalError",
    "Stream",
    "Subscription",
    "Topic",
    "TopicSubscription",
    "TopicUnavailable",
    "UsageError",
]


def __getattr__(name: str) -> Any:
    """The node and its sockets are loaded when they are used: not for `shoal --help`."""
    if name not in __all__:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    import shoal.node

    return getattr(shoal.node, name)
