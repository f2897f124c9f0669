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
    await node.put({"title": "Air quality, Kallio", "pm25": 7.1})
    async for hit in node.search("title:air pm25:<10", confidence=0.99):
        print(hit.owner, hit.content)
"""

from typing import TYPE_CHECKING, Any

from shoal.base.errors import (
    ConfigError,
    HistoryUnavailable,
    IdentityError,
    NotFound,
    OffsetExpired,
    RemoteError,
    SearchUnavailable,
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
        DataHit,
        DataSighting,
        Event,
        FoundData,
        FoundDocument,
        Gap,
        Hit,
        Incoming,
        Last,
        Matcher,
        Message,
        NetworkFile,
        Node,
        PublishedDocument,
        PublishedEvent,
        Search,
        Sighting,
        Space,
        Stream,
        Subscription,
        Topic,
        TopicSubscription,
        UserConnection,
        Watch,
    )

__version__ = "0.1.0"

__all__ = [
    "ANYONE",
    "CUSTOM",
    "LAST_SEEN",
    "NOBODY",
    "ConfigError",
    "DataHit",
    "DataSighting",
    "Event",
    "FoundData",
    "FoundDocument",
    "Gap",
    "HistoryUnavailable",
    "Hit",
    "IdentityError",
    "Incoming",
    "Last",
    "Matcher",
    "Message",
    "NetworkFile",
    "Node",
    "NotFound",
    "OffsetExpired",
    "PublishedDocument",
    "PublishedEvent",
    "RemoteError",
    "Search",
    "SearchUnavailable",
    "ShoalError",
    "Sighting",
    "Space",
    "Stream",
    "Subscription",
    "Topic",
    "TopicSubscription",
    "TopicUnavailable",
    "UsageError",
    "UserConnection",
    "Watch",
]


def __getattr__(name: str) -> Any:
    """The node and its sockets are loaded when they are used: not for `shoal --help`."""
    if name not in __all__:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    import shoal.node

    return getattr(shoal.node, name)
