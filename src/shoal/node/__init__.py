"""The node API: what `import shoal` gives."""

from shoal.node.history import Last
from shoal.node.messages import Gap, Message
from shoal.node.network_file import NetworkFile, load_network_file
from shoal.node.node import Node
from shoal.node.stream import Stream
from shoal.node.subscription import Subscription
from shoal.node.topic import ANYONE, CUSTOM, LAST_SEEN, NOBODY, Topic
from shoal.node.topic_events import Event, PublishedEvent
from shoal.node.topic_subscription import TopicSubscription

__all__ = [
    "ANYONE",
    "CUSTOM",
    "LAST_SEEN",
    "NOBODY",
    "Event",
    "Gap",
    "Last",
    "Message",
    "NetworkFile",
    "Node",
    "PublishedEvent",
    "Stream",
    "Subscription",
    "Topic",
    "TopicSubscription",
    "load_network_file",
]
