"""Those sections of a network file that say who a node is, and who its peers are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from shoal.base.errors import ConfigError
from shoal.base.ids import ADDRESSES_MAX, PARTITIONS_MAX, Contact, parse_node_id, parse_stream_id
from shoal.base.page_guard import is_loopback_name
from shoal.identity import split_secret_source
from shoal.identity.topics.cid import parse_cid
from shoal.protocols.search.config import LOCATIONS_MIN, SearchConfig
from shoal.protocols.streams.commands import RedundantFeeds
from shoal.protocols.streams.config import DEGREE_DEFAULT, DEGREE_MAX

LOCATIONS_MAX = SearchConfig().locations_max

CHILDREN_MAX = 256  # a node that sends each event more often is a bottleneck, whatever it has

ANY_STREAM = "*"


def _check_address(field: str, address: str) -> None:
    if not is_url(address, "ws", "wss", port=True):
        raise ConfigError(f"{field}: {address!r} is no address: write ws://HOST:PORT")
    if is_everywhere(address):
        raise ConfigError(
            f"{field}: {address!r} is told to others, who cannot dial it: write the address at"
            " which they reach this machine, as in ws://10.0.0.1:7700; several, if it has several"
        )


Latitude = Annotated[float, Meta(ge=-90, le=90)]
Longitude = Annotated[float, Meta(ge=-180, le=180)]


class NodeSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[node]"""

    key: str | None = None
    passphrase: str | None = None
    listen: Annotated[tuple[str, ...], Meta(max_length=ADDRESSES_MAX)] = ("ws://127.0.0.1:0",)
    certificate: str | None = None
    """PEM file with certificate and key, for wss:// addresses."""
    origins: tuple[str, ...] = ()
    """Web pages of these origins may be peers; "*" is all of them. Nodes are no web pages."""
    hosts: tuple[str, ...] = ()
    """More names under which peers on this machine reach it, as through a proxy."""
    region: Annotated[str, Meta(max_length=64)] = ""
    """Where it is, for people: a name, as in eu-north-1; the explorer knows where some are."""
    location: tuple[Latitude, Longitude] | None = None
    """Where it is on a map, if the region does not say it."""
    clock_limit_s: Annotated[float, Meta(gt=0)] = 60.0
    """A node whose clock differs by more from the trackers and storage nodes that are named here
    publishes nothing. Nodes refuse messages from more than 60 s ahead."""
    spare_key: bool = False
    """Whether a process that finds the key in use runs under a new one, instead of not at all."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for address in self.listen:
            if address != WEBRTC_ADDRESS:
                _check_address("listen", address)
            if address.startswith("wss:") and self.certificate is None:
                raise ConfigError(f"listen: {address!r} needs a certificate: name its PEM file")
        if self.passphrase is not None:
            split_secret_source("passphrase", self.passphrase)
        check_origins(self.origins)


class PeerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[[trackers]], [[storage_nodes]], [[dht.bootstrap]], [[search.bootstrap]]: pinned by id."""

    id: str
    addresses: Annotated[tuple[str, ...], Meta(min_length=1, max_length=ADDRESSES_MAX)]
    gateway: str | None = None
    """Where its gateway is, for commands that ask a tracker for its topology."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        parse_node_id(self.id)
        for address in self.addresses:
            _check_address("addresses", address)
        if self.gateway is not None and not is_url(self.gateway, "http", "https", port=False):
            raise ConfigError(f"gateway: {self.gateway!r} is no address: write http://HOST:PORT")

    def contact(self) -> Contact:
        """The peer, as machines know it."""
        return Contact(parse_node_id(self.id), self.addresses)


# The section of a network file that says how this node is reached through NATs.


WEBRTC_ADDRESS = "webrtc:"  # what a node listens on that is called, not dialled

SERVERS_MAX = 8  # of each kind; every call asks all of them

_SERVER = re.compile(
    r"(stun|turn)s?:(\[[0-9a-fA-F:]+\]|[\w.-]+)(:\d{1,5})?(\?transport=(udp|tcp))?"
)

Servers = Annotated[tuple[str, ...], Meta(max_length=SERVERS_MAX)]


class WebRTCSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[webrtc]: calls to and from nodes behind NATs. No server is asked unless it is named here."""

    stun: Servers = ()
    """Servers that tell a node its address as others see it: stun:HOST:PORT."""
    turn: Servers = ()
    """Servers that carry what finds no other way: turn:HOST:PORT."""
    user: str | None = None
    password: str | None = None
    """Where the password of the TURN servers is, env:NAME or file:PATH."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for field, urls in (("stun", self.stun), ("turn", self.turn)):
            for url in urls:
                if _SERVER.fullmatch(url) is None or not url.startswith(field):
                    raise ConfigError(f"{field}: {url!r} is no server: write {field}:HOST:PORT")
        if self.turn and (not self.user or self.password is None):
            raise ConfigError("turn: a TURN server wants a user and a password: give both")
        if self.password is not None:
            split_secret_source("password", self.password)


# Where addresses lead: to this machine, to a network of one's own, or into the Internet.


def is_local(listen: Sequence[str]) -> bool:
    """Whether a node that listens there is in a network on one machine. That it can be called says
    nothing of that; and where one is that can only be called, nobody knows."""
    dialled = [address for address in listen if address != WEBRTC_ADDRESS]
    return all(is_loopback(address) for address in dialled or listen)


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return is_loopback_name(urlsplit(address).hostname or "")
    except ValueError:
        return False


def is_everywhere(address: str) -> bool:
    """Whether it is all addresses of a machine, as 0.0.0.0 and ::, and so none to go to."""
    try:
        return ip_address(urlsplit(address).hostname or "").is_unspecified
    except ValueError:
        return False


def is_public(address: str) -> bool:
    """Whether an address is one of the Internet; a name is not: who knows what it stands for."""
    try:
        return ip_address(urlsplit(address).hostname or "").is_global
    except ValueError:
        return False


def is_url(text: str, *schemes: str, port: bool) -> bool:
    """Whether it is an address with one of these schemes; whether it has to have a port."""
    try:
        url = urlsplit(text)
        return url.scheme in schemes and bool(url.hostname) and (url.port is not None or not port)
    except ValueError:
        return False


def check_origins(origins: Sequence[str]) -> None:
    """Refuse what is no origin of web pages, as a browser writes them."""
    for origin in origins:
        listable = is_url(origin, "http", "https", port=False) and origin.count("/") == 2
        if origin != "*" and not listable:
            raise ConfigError(
                f"origins: {origin!r} is none: write https://HOST, or https://HOST:PORT"
            )


# Those sections of a network file that let in who is no node: Spark, HTTP, MQTT.


class OutboxSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[outbox]: Spark queries publish through this node."""

    token: str
    """Where the token is that they show, env:NAME or file:PATH."""
    folder: str = "outbox"
    megabytes_max: Annotated[float, Meta(gt=0)] = 256.0
    """What it holds until it is published; then queries have to wait."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        split_secret_source("token", self.token)


class GatewaySection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[gateway]: HTTP for people and programs."""

    listen: str = "127.0.0.1:0"
    keys: str | None = None
    """The file of API keys; with it nobody comes in without one."""
    open_to_all: bool = False
    """Serve beyond loopback without keys."""
    certificate: str | None = None
    private_key: str | None = None
    """PEM files, for https://; one file may have both."""
    origins: tuple[str, ...] = ()
    """Web pages of these origins may use it; "*" is all of them."""
    hosts: tuple[str, ...] = ()
    """More names under which a gateway on loopback is reached, as behind a proxy."""
    requests_per_s: Annotated[float, Meta(gt=0)] = 1_000.0
    burst: Annotated[int, Meta(ge=1)] = 2_000
    """Of one key, and of one address."""
    explorer: bool = True
    """Whether it serves the explorer; if there are keys, what that shows needs one, too."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if self.private_key is not None and self.certificate is None:
            raise ConfigError("private_key: it is of no use without its certificate: name both")
        check_origins(self.origins)


class MqttMapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[[mqtt.mappings]]: an MQTT topic and a stream that are one."""

    topic: Annotated[str, Meta(min_length=1, max_length=1024)]
    stream: str
    direction: Literal["in", "out", "both"] = "in"
    """in: from the broker into the stream; out: from the stream to the broker."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        parse_stream_id(self.stream)
        levels = self.topic.split("/")
        wild = [level for level in levels if "+" in level or "#" in level]
        if any(level not in ("+", "#") for level in wild) or "#" in levels[:-1]:
            raise ConfigError(
                f"topic: {self.topic!r} is no pattern: + stands for a level, # for all at the end"
            )
        if wild and self.direction != "in":
            raise ConfigError(
                f"topic: {self.topic!r} is many topics, so nothing can be sent to it: write"
                ' direction = "in"'
            )


class MqttSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[mqtt]: a bridge to an MQTT broker."""

    broker: str
    """mqtt://HOST:PORT, or mqtts://HOST:PORT."""
    mappings: Annotated[tuple[MqttMapping, ...], Meta(min_length=1, max_length=1_000)]
    version: Literal["5", "3.1.1"] = "5"
    user: str | None = None
    password: str | None = None
    """Where it is, env:NAME or file:PATH."""
    authority: str | None = None
    """PEM file of who signed the broker's certificate; without it, whom the machine trusts."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if not is_url(self.broker, "mqtt", "mqtts", port=True):
            raise ConfigError(f"broker: {self.broker!r} is no address: write mqtt://HOST:PORT")
        if self.password is not None:
            split_secret_source("password", self.password)
            if self.user is None:
                raise ConfigError("password: whose? name the user, too")


class StreamSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[[streams]]: what the owner of a stream decides, until there is a registry."""

    id: str = ANY_STREAM
    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)] = 1
    degree: Annotated[int, Meta(ge=3, le=DEGREE_MAX)] | None = None
    """None: the tracker's own, and so for the policy."""
    policy: Literal["random", "aware"] | None = None
    redundant_feeds: RedundantFeeds = "all"
    """How many neighbours besides the fastest send a node each publisher's messages: fewer save
    traffic, more save a round trip when one is lost."""
    trackers: tuple[str, ...] = ()
    """In order of preference; none: by hash, over all of them."""
    storage: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if self.id != ANY_STREAM:
            parse_stream_id(self.id)
        for id in (*self.trackers, *self.storage):
            parse_node_id(id)


class StorageSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[storage]: this node keeps streams, those that name it in their settings."""

    folder: str = "store"
    days_max: Annotated[float, Meta(gt=0)] | None = None
    """Messages may go after this time; none: they stay while there is room."""
    gigabytes_max: Annotated[float, Meta(gt=0)] = 64.0
    """The oldest go when the store is larger."""
    topics: tuple[str, ...] = ()
    """Durable topics whose events are appended to logs as well, for readers such as Spark."""
    create: bool | None = None
    """Whether a store that is not there is made. None: once, where this key has had none before; so
    one that was deleted, or is not mounted, is missed at the start."""
    drain: bool = False
    """Keep nothing new, and answer no readers: the other storage nodes copy what is here, after
    which this one may go."""
    streams_of_key_max: Annotated[int, Meta(ge=1)] | None = None
    streams_of_prefix_max: Annotated[int, Meta(ge=1)] | None = None
    """Streams that are kept here because one key, or one address prefix, wanted it, where the
    settings say "*"; None: the machine's own."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for topic in self.topics:
            parse_cid(topic)


class DhtSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[dht]: this node is part of the DHT, and of the trees of topics."""

    bootstrap: tuple[PeerEntry, ...] = ()
    """Whom this node meets first; none, or itself only: the others find it."""
    prefix_bucket_max: Annotated[int, Meta(ge=1)] | None = None
    prefix_table_max: Annotated[int, Meta(ge=1)] | None = None
    """Nodes of one address prefix that a bucket, and the table, take; None: as many as on the
    Internet, or any number if this node itself listens on loopback only."""


class TopicsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[topics]: what this node keeps of durable topics, and where."""

    folder: str = "topics"
    days_max: Annotated[float, Meta(gt=0)] | None = None
    """Events may go after this time; none: they stay while there is room."""
    megabytes_max: Annotated[float, Meta(gt=0)] = 64.0
    """The oldest go when events are more; they are held in memory as well."""
    pinned: tuple[str, ...] = ()
    """Topics that are kept whole, whether an application here subscribes to them or not."""
    children_max: Annotated[int, Meta(ge=1, le=CHILDREN_MAX)] | None = None
    """Nodes that this one sends a topic's events to; None: the machine's own."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for topic in self.pinned:
            parse_cid(topic)


class SearchSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[search]: this node is part of the search network, or its client."""

    bootstrap: tuple[PeerEntry, ...] = ()
    """Whom this node meets first; none, or itself only, and no caches: the others find it."""
    host_cache: str | None = None
    """A file in which the node writes down whom it has seen lately, for its next start."""
    web_cache: str | None = None
    """Where such lines are had over HTTP, if nobody else answers."""
    client: bool = False
    """Search through another node, without a place in the network: for those who stay shortly, or
    cannot be dialled."""
    locations: Annotated[int, Meta(ge=LOCATIONS_MIN, le=LOCATIONS_MAX)] | None = None
    """Places, two neighbours each, of a node with the usual rates; None: the machine's own."""
    confidence: Annotated[float, Meta(gt=0, lt=1)] | None = None
    """With which probability a search meets a document of this node, if both are made for the same
    one; None: the machine's own."""
    upload_kib_s: Annotated[float, Meta(gt=0)] | None = None
    """What it sends at most for search; its places are in proportion. None: what links take."""
    download_kib_s: Annotated[float, Meta(gt=0)] | None = None
    """What its line takes, if that is less."""
    announce: bool = True
    """Whether streams and topics that are made or opened here can be found."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        url = self.web_cache
        if url is not None and not is_url(url, "http", "https", port=False):
            raise ConfigError(f"web_cache: {url!r} is no address: write https://HOST/PATH")
        if self.client and not (self.bootstrap or self.host_cache or url):
            raise ConfigError("client: nobody is known to search through: add [[search.bootstrap]]")


class TrackerSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[tracker]: this node is a tracker."""

    degree: Annotated[int, Meta(ge=3, le=DEGREE_MAX)] = DEGREE_DEFAULT
    policy: Literal["random", "aware"] = "random"
    """How links are chosen: blindly, or by the round trips that nodes measure."""
    streams_of_key_max: Annotated[int, Meta(ge=1)] | None = None
    streams_of_prefix_max: Annotated[int, Meta(ge=1)] | None = None
    """Streams that one key, or the nodes of one address prefix, may begin here; None: the machine's
    own. Links from this machine or a private network count by their keys alone."""
