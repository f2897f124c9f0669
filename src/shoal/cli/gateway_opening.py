"""Opening the gateway of a node, and its bridge to an MQTT broker, as its network file says."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from urllib.parse import urlsplit

from shoal.base.errors import ConfigError
from shoal.base.ids import parse_stream_id
from shoal.cli.gateway_doors import doors_of
from shoal.gateway import Gateway, GatewayConfig
from shoal.gateway.log import Logs
from shoal.gateway.metrics import Gauge
from shoal.gateway.mqtt.bridge import Bridge, BridgeConfig, Mapped
from shoal.gateway.mqtt.packets import Credentials
from shoal.gateway.mqtt.session import Address
from shoal.gateway.routes import Extra
from shoal.identity import read_secret
from shoal.node import Node
from shoal.node.network_file import GatewaySection, MqttSection, NetworkFile


async def open_doors(node: Node, stack: AsyncExitStack, extras: Sequence[Extra] = ()) -> str | None:
    """What [gateway] and [mqtt] ask for, until the stack ends; the gateway's address."""
    network, bridge = node.network, None
    if network.mqtt is not None:
        bridge = bridge_of(node, network.mqtt)
        stack.push_async_callback(bridge.close)
        bridge.start()
    if network.gateway is None:
        return None
    gateway = gateway_of(node, network.gateway, bridge, extras)
    stack.push_async_callback(gateway.close)
    return await gateway.open(network.gateway.listen)


def gateway_of(
    node: Node,
    section: GatewaySection,
    bridge: Bridge | None = None,
    extras: Sequence[Extra] = (),
) -> Gateway:
    """The gateway of a node, not yet open."""
    stored, logs = node.storage, node.topic_logs
    return Gateway(
        node.host,
        node.tracker,
        doors=doors_of(node),
        disk=None if stored is None else stored.disk,
        keeps=None if stored is None else stored.keeps,
        names=None if stored is None else stored.names,
        unheard=None if stored is None else stored.unheard,
        progress=tuple if stored is None else stored.sync.progress,
        topic_logs=None if logs is None else Logs(logs.store, node.id, logs.keeps, topics=True),
        outbox=node.outbox,
        bridge=bridge,
        config=config_of(node.network, section),
        extras=extras,
        gauges=partial(gauges_of, node),
    )


def gauges_of(node: Node) -> list[Gauge]:
    """What a node tells of itself beside what the gateway counts."""
    gauges: list[Gauge] = []
    if node.storage is not None:
        copies = node.storage.sync.copies()
        gauges += [
            Gauge(
                "storage_single_copies",
                "Messages of the own log that no other storage node has said that it has.",
                copies.single,
            ),
            Gauge(
                "storage_missing_copies",
                "Copies of messages of the own log that other storage nodes have not said that"
                " they have.",
                copies.missing,
            ),
            Gauge(
                "storage_uncompared_streams",
                "Streams that were compared with no other storage node since the links came up:"
                " their copies are not known.",
                copies.uncompared,
            ),
            Gauge(
                "storage_gaps",
                "Messages that a later one of their chain names as the one before, and that are"
                " not here: 10,000 at most.",
                node.storage.machine.gaps.count,
            ),
            Gauge(
                "storage_gaps_unchecked",
                "Such messages that were not looked for, since there were too many at once.",
                node.storage.machine.gaps.unchecked,
            ),
        ]
    if node.unkept is not None:
        gauges += [
            Gauge(
                "unkept_messages",
                "Durable messages of this node that no storage node has confirmed yet.",
                node.unkept.waiting,
            ),
            Gauge(
                "unkept_dropped",
                "Durable messages that were given up: no room, or refused by all storage nodes.",
                node.unkept.dropped,
            ),
        ]
    return gauges


def config_of(network: NetworkFile, section: GatewaySection) -> GatewayConfig:
    """What the network file says, its paths made whole."""
    files = {
        name: None if given is None else network.path(given)
        for name, given in (
            ("keys", section.keys),
            ("certificate", section.certificate),
            ("private_key", section.private_key),
        )
    }
    return GatewayConfig(
        **files,
        open_to_all=section.open_to_all,
        origins=section.origins,
        hosts=section.hosts,
        requests_per_s=section.requests_per_s,
        burst=section.burst,
    )


def bridge_of(node: Node, section: MqttSection) -> Bridge:
    """The bridge of a node to its MQTT broker, not yet begun."""
    door, broker = doors_of(node).streams, urlsplit(section.broker)
    if door is None:
        raise ConfigError("mqtt: streams need a tracker: add [[trackers]] to the network file")
    assert broker.hostname is not None  # the section has checked it
    assert broker.port is not None
    password = None
    if section.password is not None:
        password = read_secret("password", section.password, node.network.path("."), os.environ)
    address = Address(
        broker.hostname,
        broker.port,
        # The same with every start, if the node has a key: the broker keeps what came meanwhile.
        Credentials(f"shoal-{node.id.hex()}", section.user, password),
        section.version,
        _broker_tls(node.network, section) if broker.scheme == "mqtts" else None,
    )
    mappings = [
        Mapped(one.topic, parse_stream_id(one.stream), one.direction) for one in section.mappings
    ]
    bridge = Bridge(door, BridgeConfig(address, mappings))
    node.host.readiness.add("mqtt", lambda: bridge.problem)
    return bridge


def _broker_tls(network: NetworkFile, section: MqttSection) -> ssl.SSLContext:
    authority = None if section.authority is None else network.path(section.authority)
    try:
        return ssl.create_default_context(cafile=authority)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"mqtt.authority: {authority}: {error}: give a PEM file") from error
