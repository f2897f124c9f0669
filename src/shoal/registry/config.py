"""[registry] of the network file: which registry, and how old what is known of it may be.

[registry]                          # an embedded one: a folder, for processes of one machine
folder = "registry"

[registry]                          # or one on a chain
url = "http://127.0.0.1:8545"
contract = "0x..."                  # as `shoal registry deploy` said
finality_blocks = 5                 # a block counts when so many follow it
"""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from shoal.base.errors import ConfigError
from shoal.base.ids import parse_node_id

EMBEDDED_POLL_S = 0.25  # one look at the length of a file
CHAIN_POLL_S = 2.0  # a sixth of the time between two blocks of Ethereum
CACHE_ENTRIES_MAX = 65_536  # permissions of so many addresses: 20 MB
WATCH_CHANGES_MAX = 4_096  # that wait for somebody to take them


class RegistrySection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[registry]"""

    folder: str | None = None
    """Of an embedded registry."""
    url: str | None = None
    """Of a chain's JSON-RPC endpoint, instead of a folder."""
    contract: str | None = None
    """On that chain: the address of the Streams contract."""
    finality_blocks: Annotated[int, Meta(ge=0, le=128)] = 5
    """A block counts when so many follow it: a minute on Ethereum. Blocks that are replaced before
    are never seen."""
    poll_s: Annotated[float, Meta(gt=0)] | None = None
    """How often the chain is asked what is new; None: 0.25 embedded, 2 on a chain."""
    staleness_s: Annotated[float, Meta(gt=0)] = 120.0
    """While the chain is out of reach, what is known counts for this long; then it is refused."""
    head_age_s_max: Annotated[float, Meta(gt=0)] | None = None
    """A chain whose newest block is older is out of reach, too: its endpoint hangs. None: chains
    without a steady pace."""
    outage_writes: Literal["refuse", "wait"] = "refuse"
    """What becomes of a change while the chain is out of reach: an error at once, or after
    `write_s`."""
    request_s: Annotated[float, Meta(gt=0)] = 5.0
    """An endpoint that takes longer for an answer is out of reach."""
    write_s: Annotated[float, Meta(gt=0)] = 180.0
    """A change that is not final by then is given up on, though it may still happen."""
    fee_gwei_max: Annotated[float, Meta(gt=0)] = 100.0
    """A unit of gas is never paid with more, whatever the endpoint says it costs."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if (self.folder is None) == (self.url is None):
            raise ConfigError(
                'registry: give folder = "registry" for an embedded one, or url for one on a chain'
            )
        if self.url is not None and not _is_http(self.url):
            raise ConfigError("registry.url: write http://HOST:PORT or https://HOST/PATH")
        if self.contract is not None:
            parse_node_id(self.contract)
            if self.url is None:
                raise ConfigError(
                    "registry.contract: an embedded registry knows its own: leave out"
                )

    @property
    def interval_s(self) -> float:
        """Between two looks at what is new."""
        if self.poll_s is not None:
            return self.poll_s
        return CHAIN_POLL_S if self.folder is None else EMBEDDED_POLL_S

    @property
    def depth(self) -> int:
        """Blocks that must follow one; an embedded chain never takes one back."""
        return self.finality_blocks if self.folder is None else 0


def _is_http(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False
