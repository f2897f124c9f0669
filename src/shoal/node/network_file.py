"""The network file: one TOML file with everything that a node must know.

[node]
key = "node.key"                    # a keystore, beside this file; none: a new key each start
passphrase = "env:SHOAL_PASSPHRASE" # where its passphrase is
listen = ["ws://127.0.0.1:0"]       # where peers reach this node

[[trackers]]                        # any number; each stream goes to one of them
id = "0x..."
addresses = ["ws://127.0.0.1:7700"]

[[storage_nodes]]                   # who may be asked to keep streams
id = "0x..."
addresses = ["ws://127.0.0.1:7710"]

[[streams]]                         # what the owner of a stream decides; "*" for all others
id = "0x.../city/vehicles"
partitions = 4
redundant_feeds = 1                 # copies of each message beyond the first; "all" by default
trackers = ["0x..."]                # in this order, instead of by hash
storage = ["0x..."]

[tracker]                           # only if this node is one
degree = 4
policy = "aware"                    # links by measured delay; "random" by default

[storage]                           # only if this node keeps streams
folder = "store"

[dht]                               # only if this node takes part in durable topics

[[dht.bootstrap]]                   # whom members of the DHT meet first; it makes nobody a member
id = "0x..."
addresses = ["ws://127.0.0.1:7720"]

[topics]                            # what it keeps of them; without: in memory
folder = "topics"

[search]                            # only if this node takes part in search
host_cache = "hosts"                # whom it met; [[search.bootstrap]] is as [[dht.bootstrap]]

[registry]                          # which streams there are, and who may do what with them
folder = "registry"                 # or one on a chain: see shoal.registry.config

[outbox]                            # only if Spark queries publish through this node
token = "env:SHOAL_OUTBOX_TOKEN"    # where the token is that they must show

[gateway]                           # HTTP: docs/gateway.md
listen = "127.0.0.1:7780"

[webrtc]                            # calls through NATs: docs/links.md
stun = ["stun:stun.example.org:3478"]

[mqtt]                              # a bridge to a broker: docs/gateway.md
broker = "mqtt://127.0.0.1:1883"

What is wrong with a value is found when it is read, and named with its field and a remedy.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from shoal.base.errors import ConfigError, NotFound
from shoal.base.ids import (
    PARTITIONS_MAX,
    NodeId,
    StreamId,
    parse_node_id,
    parse_stream_id,
    show_node_id,
)
from shoal.identity import read_secret
from shoal.identity.topics.cid import parse_cid
from shoal.kernel.contact import Contact
from shoal.node.addresses import is_url
from shoal.node.door_sections import GatewaySection as GatewaySection
from shoal.node.door_sections import MqttSection as MqttSection
from shoal.node.door_sections import OutboxSection as OutboxSection
from shoal.node.peer_sections import NodeSection as NodeSection
from shoal.node.peer_sections import PeerEntry as PeerEntry
from shoal.node.webrtc_section import WEBRTC_ADDRESS, WebRTCSection
from shoal.protocols.search.config import LOCATIONS_MIN, SearchConfig
from shoal.protocols.streams.commands import RedundantFeeds, feeds_of
from shoal.protocols.streams.config import DEGREE_DEFAULT, DEGREE_MAX
from shoal.registry.config import RegistrySection

LOCATIONS_MAX = SearchConfig().locations_max
CHILDREN_MAX = 256  # a node that sends each event more often is a bottleneck, whatever it has

_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<field>.*)`)?$", re.DOTALL)


ANY_STREAM = "*"


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


class NetworkFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole network file."""

    node: NodeSection = NodeSection()
    trackers: tuple[PeerEntry, ...] = ()
    storage_nodes: tuple[PeerEntry, ...] = ()
    streams: tuple[StreamSettings, ...] = ()
    tracker: TrackerSection | None = None
    storage: StorageSection | None = None
    dht: DhtSection | None = None
    topics: TopicsSection | None = None
    search: SearchSection | None = None
    registry: RegistrySection | None = None
    outbox: OutboxSection | None = None
    gateway: GatewaySection | None = None
    mqtt: MqttSection | None = None
    webrtc: WebRTCSection | None = None
    folder: str = "."
    """Where relative paths begin: the file's own folder."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for field, names in (
            ("trackers", [parse_node_id(entry.id) for entry in self.trackers]),
            ("storage_nodes", [parse_node_id(entry.id) for entry in self.storage_nodes]),
            ("dht.bootstrap", [parse_node_id(entry.id) for entry in self.bootstrap]),
            ("search.bootstrap", [parse_node_id(entry.id) for entry in self.search_bootstrap]),
            ("streams", [_settings_key(settings.id) for settings in self.streams]),
        ):
            if len(set(names)) < len(names):
                raise ConfigError(f"{field}: two entries have the same id: keep one")
        if self.outbox is not None and self.gateway is None:
            raise ConfigError("outbox: queries reach it over HTTP: add [gateway]")
        if WEBRTC_ADDRESS in self.node.listen and self.webrtc is None:
            raise ConfigError("listen: calls need WebRTC: add [webrtc]")
        if self.topics is not None and self.dht is None:
            raise ConfigError("topics: they are found over the DHT: add [dht]")
        if self.storage is not None and self.storage.topics and self.dht is None:
            raise ConfigError("storage.topics: topics are found over the DHT: add [dht]")
        for settings in self.streams:
            self._check_named("trackers", settings.trackers, self.trackers)
            self._check_named("storage", settings.storage, self.storage_nodes)

    def _check_named(
        self, field: str, ids: tuple[str, ...], entries: tuple[PeerEntry, ...]
    ) -> None:
        known = {parse_node_id(entry.id) for entry in entries}
        for id in ids:
            if parse_node_id(id) not in known:
                section = "trackers" if field == "trackers" else "storage_nodes"
                raise ConfigError(f"streams.{field}: {id} is nobody's: add it to [[{section}]]")

    @property
    def bootstrap(self) -> tuple[PeerEntry, ...]:
        """Whom a node of the DHT meets first."""
        return () if self.dht is None else self.dht.bootstrap

    @property
    def search_bootstrap(self) -> tuple[PeerEntry, ...]:
        """Whom a node of the search network meets first."""
        return () if self.search is None else self.search.bootstrap

    def path(self, name: str) -> Path:
        """A path that the file names."""
        return Path(self.folder, name)

    def trackers_of(self, own: Contact) -> tuple[Contact, ...]:
        """The trackers that this node's streams go to, if any."""
        if self.trackers:
            return tuple(entry.contact() for entry in self.trackers)
        return () if self.tracker is None else (own,)

    def stream_settings(self, stream: StreamId) -> StreamSettings:
        """What was decided for a stream, or for all that are not named."""
        found = StreamSettings()
        for settings in self.streams:
            if settings.id == ANY_STREAM:
                found = settings
            elif parse_stream_id(settings.id) == stream:
                return settings
        return found

    def redundant_feeds(self, stream: StreamId) -> int | None:
        """How many feeds a node keeps besides the fastest; None: all."""
        return feeds_of(self.stream_settings(stream).redundant_feeds)

    def pinned_trackers(self, stream: StreamId) -> tuple[NodeId, ...]:
        """The trackers that a stream goes to before all others."""
        return tuple(parse_node_id(id) for id in self.stream_settings(stream).trackers)

    def storage_of(self, stream: StreamId) -> tuple[Contact, ...]:
        """The storage nodes of a stream, in the order that its owner gave."""
        contacts = {entry.contact().node: entry.contact() for entry in self.storage_nodes}
        named = self.stream_settings(stream).storage
        return tuple(contacts[parse_node_id(id)] for id in named)

    def passphrase(self) -> str:
        """The keystore's passphrase, from where the file says it is."""
        source = self.node.passphrase
        return "" if source is None else read_passphrase(source, Path(self.folder))


def load_network_file(path: str | Path) -> NetworkFile:
    """Read a network file; errors name the file, the field and the remedy."""
    path = Path(path)
    try:
        if not path.is_file():
            raise NotFound(
                f"no network file {path}: `shoal up` makes one, with a network on this machine; or"
                " write one (see docs/network-file.md)"
            )
        text = path.read_text(encoding="utf-8")
        table = msgspec.toml.decode(text)
        if "folder" in table:
            raise ConfigError("folder: no such field: paths begin at the file's own folder")
        network = msgspec.convert({**table, "folder": str(path.parent)}, NetworkFile)
        others = [role for role in ("dht", "search") if role in table and not _says(text, role)]
        return msgspec.structs.replace(network, **dict.fromkeys(others))
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_explain(error)}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _says(text: str, section: str) -> bool:
    """Whether a file has the section itself. [[dht.bootstrap]] makes a table "dht" as [dht] does,
    but says only whom members meet first. What tells them apart: TOML has each section once."""
    try:
        msgspec.toml.decode(f"{text}\n[{section}]\n")
    except msgspec.DecodeError:
        return True
    return False


def read_passphrase(source: str, folder: Path) -> str:
    """A passphrase from env:NAME or file:PATH; never from a setting itself."""
    return read_secret("passphrase", source, folder, os.environ)


def tracker_contact(node: NodeId, addresses: list[str]) -> PeerEntry:
    """What other nodes' files must say to find a tracker."""
    return PeerEntry(show_node_id(node), tuple(addresses))


def _settings_key(id: str) -> str:
    return id if id == ANY_STREAM else parse_stream_id(id)


def _explain(error: msgspec.ValidationError) -> str:
    """What msgspec found, with the field in front."""
    found = _WHERE.match(str(error))
    assert found is not None  # the pattern takes any text
    what = found["what"][:1].lower() + found["what"][1:]
    return f"{found['field']}: {what}" if found["field"] else what
