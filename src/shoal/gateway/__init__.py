"""HTTP and MQTT for everything that is not Python: publish, subscribe, history, topics, search.

Begin with `server.py`, then `request_admission.py` (which page, key and client may do what) and
`endpoints/` (a file for each resource). `live_feeds.py` feeds live subscribers; `mqtt/` is the
bridge to a broker. It must not know machines.
"""

from shoal.gateway.config import GatewayConfig
from shoal.gateway.live_feeds import Doors
from shoal.gateway.server import Gateway

__all__ = ["Doors", "Gateway", "GatewayConfig"]
