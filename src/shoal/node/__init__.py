"""A running node, and what users import.

Begin with `node.py`; `assembly.py` builds its machines from the network file. The rooms `streams/`,
`topics/` and `search/` are its API, `keys/` its own key and those of streams, `roles/` what it does
for others. `blocking.py` is the same API without async. It must not know HTTP or the command line.
"""

from shoal.config.network_file import NetworkFile, Reloaded, load_network_file
from shoal.node.blocking import (
    BlockingNode,
    BlockingStream,
    BlockingTopic,
    Items,
    Messages,
    connect,
)
from shoal.node.node import Node
from shoal.node.search.documents import PublishedDocument, Space
from shoal.node.search.results import (
    DataHit,
    DataSighting,
    FoundData,
    FoundDocument,
    Hit,
    Search,
    Sighting,
    Watch,
)
from shoal.node.search.user_connections import Incoming, UserConnection
from shoal.node.streams.history import HistoryRead, Last, Missing
from shoal.node.streams.message import Gap, Message
from shoal.node.streams.stream import Stream
from shoal.node.streams.subscription import Subscription
from shoal.node.topics.event import Event, PublishedEvent
from shoal.node.topics.subscription import TopicSubscription
from shoal.node.topics.topic import ANYONE, CUSTOM, LAST_SEEN, NOBODY, Topic
from shoal.protocols.search.spaces import Matcher
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
