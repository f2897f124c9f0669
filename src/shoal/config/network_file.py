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
from typing import Any

import msgspec
from msgspec.structs import replace

from shoal.base.errors import ConfigError, NotFound
from shoal.base.ids import Contact, NodeId, StreamId, parse_node_id, parse_stream_id, show_node_id
from shoal.config.sections import (
    ANY_STREAM,
    WEBRTC_ADDRESS,
    DhtSection,
    GatewaySection,
    MqttSection,
    NodeSection,
    OutboxSection,
    PeerEntry,
    SearchSection,
    StorageSection,
    StreamSettings,
    TopicsSection,
    TrackerSection,
    WebRTCSection,
)
from shoal.identity import read_secret
from shoal.protocols.streams.commands import feeds_of
from shoal.registry.config import RegistrySection

_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<field>.*)`)?$", re.DOTALL)


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


# What of a network file a running node can take, and what needs a restart.


TAKEN = ("trackers", "storage_nodes", "streams")
TAKEN_WITHIN = {
    "dht": ("bootstrap",),
    "search": ("bootstrap",),
    "tracker": ("degree", "policy"),
    "storage": ("days_max", "gigabytes_max"),
}
"""Fields of sections that a node has already. A tracker goes by its own for streams that come."""


class Reloaded(msgspec.Struct, frozen=True):
    """What became of another version of a network file, by section or field."""

    taken: tuple[str, ...]
    restart: tuple[str, ...]
    """These are different, and count from the next start of the node."""


class Comparison(msgspec.Struct):
    """Two versions of a network file."""

    network: NetworkFile
    """What a node that runs by the old one can go on by."""
    taken: list[str]
    restart: dict[str, str]


def compare(old: NetworkFile, new: NetworkFile) -> Comparison:
    """What is different, and what of that can be taken."""
    taken: list[str] = []
    restart: dict[str, str] = {}
    changes: dict[str, Any] = {}
    for name in NetworkFile.__struct_fields__:
        before, after = getattr(old, name), getattr(new, name)
        if before == after or name == "folder":
            continue
        # A node that knew no tracker has no part that could use one.
        if name in TAKEN and (name != "trackers" or (before and after)):
            changes[name] = after
            taken.append(name)
        elif before is None or after is None or name not in TAKEN_WITHIN:
            restart[name] = ""
        else:
            fields: dict[str, Any] = {}
            for field in before.__struct_fields__:
                if getattr(before, field) != getattr(after, field):
                    if field in TAKEN_WITHIN[name]:
                        fields[field] = getattr(after, field)
                        taken.append(f"{name}.{field}")
                    else:
                        restart[f"{name}.{field}"] = ""
            changes[name] = replace(before, **fields)
    return Comparison(replace(old, **changes), taken, restart)
