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

with shoal.connect("shoal.toml") as node:  # the same without async, for scripts and notebooks
    node.open_stream("/city/vehicles").publish({"vehicle": 12, "speed": 8.1})
"""

from typing import TYPE_CHECKING, Any

from shoal.base.errors import (
    ClockWrong,
    ConfigError,
    HistoryIncomplete,
    HistoryUnavailable,
    IdentityError,
    NotFound,
    NotPermitted,
    OffsetExpired,
    RegistryRefused,
    RegistryUnavailable,
    RemoteError,
    SearchUnavailable,
    SessionReplaced,
    ShoalError,
    StreamUnavailable,
    TopicUnavailable,
    UsageError,
)

if TYPE_CHECKING:
    from shoal.node import (
        ANYONE,
        CUSTOM,
        LAST_SEEN,
        NOBODY,
        BlockingNode,
        BlockingStream,
        BlockingTopic,
        DataHit,
        DataSighting,
        Event,
        FoundData,
        FoundDocument,
        Gap,
        HistoryRead,
        Hit,
        Incoming,
        Items,
        Last,
        Matcher,
        Message,
        Messages,
        Missing,
        NetworkFile,
        Node,
        PublishedDocument,
        PublishedEvent,
        Readiness,
        Reloaded,
        RoleReadiness,
        Search,
        Sighting,
        Space,
        Stream,
        StreamTerms,
        Subscription,
        Topic,
        TopicSubscription,
        UserConnection,
        Watch,
        connect,
    )

__version__ = "0.1.0"

__all__ = [
    "ANYONE",
    "CUSTOM",
    "LAST_SEEN",
    "NOBODY",
    "BlockingNode",
    "BlockingStream",
    "BlockingTopic",
    "ClockWrong",
    "ConfigError",
    "DataHit",
    "DataSighting",
    "Event",
    "FoundData",
    "FoundDocument",
    "Gap",
    "HistoryIncomplete",
    "HistoryRead",
    "HistoryUnavailable",
    "Hit",
    "IdentityError",
    "Incoming",
    "Items",
    "Last",
    "Matcher",
    "Message",
    "Messages",
    "Missing",
    "NetworkFile",
    "Node",
    "NotFound",
    "NotPermitted",
    "OffsetExpired",
    "PublishedDocument",
    "PublishedEvent",
    "Readiness",
    "RegistryRefused",
    "RegistryUnavailable",
    "Reloaded",
    "RemoteError",
    "RoleReadiness",
    "Search",
    "SearchUnavailable",
    "SessionReplaced",
    "ShoalError",
    "Sighting",
    "Space",
    "Stream",
    "StreamTerms",
    "StreamUnavailable",
    "Subscription",
    "Topic",
    "TopicSubscription",
    "TopicUnavailable",
    "UsageError",
    "UserConnection",
    "Watch",
    "connect",
]


def __getattr__(name: str) -> Any:
    """The node and its sockets are loaded when they are used: not for `shoal --help`."""
    if name not in __all__:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    import shoal.node

    return getattr(shoal.node, name)
