"""HTTP and MQTT for whoever is not Python: publish, subscribe, history, topics, search."""

from shoal.gateway.config import GatewayConfig
from shoal.gateway.doors import Doors
from shoal.gateway.server import Gateway

__all__ = ["Doors", "Gateway", "GatewayConfig"]
