"""The node API: what `import shoal` gives."""

from shoal.node.blocking import (
    BlockingNode,
    BlockingStream,
    BlockingTopic,
    Items,
    Messages,
    connect,
)
from shoal.node.documents import PublishedDocument
from shoal.node.found import DataHit, DataSighting, FoundData, FoundDocument, Hit, Sighting
from shoal.node.history import HistoryRead, Last, Missing
from shoal.node.messages import Gap, Message
from shoal.node.network_file import NetworkFile, load_network_file
from shoal.node.node import Node
from shoal.node.reloading import Reloaded
from shoal.node.search_results import Search
from shoal.node.space import Space
from shoal.node.stream import Stream
from shoal.node.subscription import Subscription
from shoal.node.topic import ANYONE, CUSTOM, LAST_SEEN, NOBODY, Topic
from shoal.node.topic_events import Event, PublishedEvent
from shoal.node.topic_subscription import TopicSubscription
from shoal.node.user_connection import Incoming, UserConnection
from shoal.node.watch import Watch
from shoal.protocols.search.matched_space import Matcher
from shoal.registry.port import StreamTerms
from shoal.runtime.readiness import Readiness, RoleReadiness

__all__ = [
    "ANYONE",
    "CUSTOM",
    "LAST_SEEN",
    "NOBODY",
    "BlockingNode",
    "BlockingStream",
    "BlockingTopic",
    "DataHit",
    "DataSighting",
    "Event",
    "FoundData",
    "FoundDocument",
    "Gap",
    "HistoryRead",
    "Hit",
    "Incoming",
    "Items",
    "Last",
    "Matcher",
    "Message",
    "Messages",
    "Missing",
    "NetworkFile",
    "Node",
    "PublishedDocument",
    "PublishedEvent",
    "Readiness",
    "Reloaded",
    "RoleReadiness",
    "Search",
    "Sighting",
    "Space",
    "Stream",
    "StreamTerms",
    "Subscription",
    "Topic",
    "TopicSubscription",
    "UserConnection",
    "Watch",
    "connect",
    "load_network_file",
]
