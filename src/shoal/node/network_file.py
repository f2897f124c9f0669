"""The network file: one TOML file with everything that a node must know.

[node]
key = "node.key"                    # a keystore, beside this file; none: a new key each start
passphrase = "env:SHOAL_PASSPHRASE" # where its passphrase is
listen = ["ws://127.0.0.1:0"]       # where peers reach this node

[[trackers]]
id = "0x..."
addresses = ["ws://127.0.0.1:7700"]

[tracker]                           # only if this node is one
degree = 4

[gateway]
listen = "127.0.0.1:7780"

What is wrong with a value is found when it is read, and named with its field and a remedy.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from shoal.base.errors import ConfigError, NotFound
from shoal.base.ids import NodeId, parse_node_id, show_node_id
from shoal.kernel.contact import ADDRESSES_MAX, Contact
from shoal.protocols.streams.config import DEGREE_DEFAULT, DEGREE_MAX

_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<field>.*)`)?$", re.DOTALL)


def _split_source(source: str) -> tuple[str, str]:
    kind, _, name = source.partition(":")
    if kind not in ("env", "file") or not name:
        # Whatever stands there may be the passphrase: it is not repeated.
        raise ConfigError(
            "passphrase: write env:NAME or file:PATH to say where it is, "
            "never the passphrase itself"
        )
    return kind, name


def _check_address(field: str, address: str) -> None:
    try:
        url = urlsplit(address)
        good = url.scheme in ("ws", "wss") and bool(url.hostname) and url.port is not None
    except ValueError:
        good = False
    if not good:
        raise ConfigError(f"{field}: {address!r} is no address: write ws://HOST:PORT")


class NodeSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[node]"""

    key: str | None = None
    passphrase: str | None = None
    listen: Annotated[tuple[str, ...], Meta(max_length=ADDRESSES_MAX)] = ("ws://127.0.0.1:0",)
    certificate: str | None = None
    """PEM file with certificate and key, for wss:// addresses."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for address in self.listen:
            _check_address("listen", address)
            if address.startswith("wss:") and self.certificate is None:
                raise ConfigError(f"listen: {address!r} needs a certificate: name its PEM file")
        if self.passphrase is not None:
            _split_source(self.passphrase)


class TrackerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[[trackers]]: trackers are pinned by id."""

    id: str
    addresses: Annotated[tuple[str, ...], Meta(min_length=1, max_length=ADDRESSES_MAX)]

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        parse_node_id(self.id)
        for address in self.addresses:
            _check_address("addresses", address)

    def contact(self) -> Contact:
        """The tracker, as machines know it."""
        return Contact(parse_node_id(self.id), self.addresses)


class TrackerSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[tracker]: this node is a tracker."""

    degree: Annotated[int, Meta(ge=3, le=DEGREE_MAX)] = DEGREE_DEFAULT


class GatewaySection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[gateway]: HTTP for people and programs."""

    listen: str = "127.0.0.1:0"


class NetworkFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole network file."""

    node: NodeSection = NodeSection()
    trackers: tuple[TrackerEntry, ...] = ()
    tracker: TrackerSection | None = None
    gateway: GatewaySection | None = None
    folder: str = "."
    """Where relative paths begin: the file's own folder."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if len(self.trackers) > 1:
            raise ConfigError(
                f"trackers: {len(self.trackers)} entries: a network has one tracker for now"
            )

    def path(self, name: str) -> Path:
        """A path that the file names."""
        return Path(self.folder, name)

    def tracker_of(self, own: Contact) -> Contact | None:
        """The tracker that this node's streams go to, if any."""
        if self.trackers:
            return self.trackers[0].contact()
        return None if self.tracker is None else own

    def passphrase(self) -> str:
        """The keystore's passphrase, from where the file says it is."""
        source = self.node.passphrase
        return "" if source is None else read_passphrase(source, Path(self.folder))


def load_network_file(path: str | Path) -> NetworkFile:
    """Read a network file; errors name the file, the field and the remedy."""
    path = Path(path)
    if not path.is_file():
        raise NotFound(f"no network file {path}: write one (see docs/network-file.md)")
    try:
        table = msgspec.toml.decode(path.read_bytes())
        if "folder" in table:
            raise ConfigError("folder: no such field: paths begin at the file's own folder")
        return msgspec.convert({**table, "folder": str(path.parent)}, NetworkFile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_explain(error)}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def read_passphrase(source: str, folder: Path) -> str:
    """A passphrase from env:NAME or file:PATH; never from a setting itself."""
    kind, name = _split_source(source)
    if kind == "env":
        value = os.environ.get(name)
        if value is None:
            raise ConfigError(f"passphrase {source!r}: set the variable {name}")
        return value
    path = folder / name
    try:
        return path.read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(f"passphrase {source!r}: cannot read {path}: {problem}") from error


def tracker_contact(node: NodeId, addresses: list[str]) -> TrackerEntry:
    """What other nodes' files must say to find a tracker."""
    return TrackerEntry(show_node_id(node), tuple(addresses))


def _explain(error: msgspec.ValidationError) -> str:
    """What msgspec found, with the field in front."""
    found = _WHERE.match(str(error))
    assert found is not None  # the pattern takes any text
    what = found["what"][:1].lower() + found["what"][1:]
    return f"{found['field']}: {what}" if found["field"] else what
