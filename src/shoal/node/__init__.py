"""The node API: what `import shoal` gives."""

from shoal.node.history import Last
from shoal.node.messages import Gap, Message
from shoal.node.network_file import NetworkFile, load_network_file
from shoal.node.node import Node
from shoal.node.stream import Stream
from shoal.node.subscription import Subscription

__all__ = [
    "Gap",
    "Last",
    "Message",
    "NetworkFile",
    "Node",
    "Stream",
    "Subscription",
    "load_network_file",
]
