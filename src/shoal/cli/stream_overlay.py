"""`shoal stream topology|estimate`: what the tracker of a stream knows of its overlay. Trackers
tell it over their gateways, whose addresses the network file has."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.serve import Config
from shoal.cli.stream_admin import Id

if TYPE_CHECKING:
    from shoal.base.ids import StreamId
    from shoal.node.network_file import NetworkFile

ANSWER_S = 30.0  # all pairs of 2,000 nodes take a second, one after the other
API_KEY = "SHOAL_API_KEY"

Gateway = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help=f"The gateway of the stream's tracker; an API key for it is taken from ${API_KEY}.",
        show_default="as [[trackers]] says",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One line of JSON.")]


def topology(
    id: Id, config: Config = Path("shoal.toml"), gateway: Gateway = None, as_json: Json = False
) -> None:
    """Print the overlay of a stream: a line for each link, with its round trip, and to stderr how
    many nodes there are.

    Example: shoal stream topology /vehicles
    """
    found = _ask(id, config, gateway, "topology")
    if as_json:
        print(json.dumps(found))
        return
    for link in found["links"]:
        rtt_us = link["rtt_us"]
        measured = "not measured yet" if rtt_us is None else f"{rtt_us / 1000:.1f} ms"
        print(f"{link['a']} {link['b']} {measured}")
    members, links = len(found["members"]), len(found["links"])
    typer.echo(f"{members} nodes, {links} links, degree {found['degree']}", err=True)


def estimate(
    id: Id, config: Config = Path("shoal.toml"), gateway: Gateway = None, as_json: Json = False
) -> None:
    """Print how long a message will take from any node of a stream to any other, as its links were
    measured.

    Example: shoal stream estimate /vehicles --json
    """
    found = _ask(id, config, gateway, "estimate")
    if as_json:
        print(json.dumps(found))
        return
    if found["mean_ms"] is None:
        print(f"nothing is measured yet: {found['nodes']} nodes, {found['links']} links")
        return
    low, mean, high = (found[name] for name in ("min_ms", "mean_ms", "max_ms"))
    print(f"mean {mean:.1f} ms, from {low:.1f} to {high:.1f} ms between two nodes")
    measured = f"{found['measured_links']} of {found['links']} links measured"
    typer.echo(f"{found['nodes']} nodes, {measured}", err=True)


def _ask(id: str, config: Path, gateway: str | None, what: str) -> Any:
    from shoal.base.errors import NotFound, ShoalError
    from shoal.node.network_file import load_network_file

    network = load_network_file(config)
    stream = _whole(id, network)
    problems = []
    for url in [gateway] if gateway is not None else _gateways(network, stream):
        request = urllib.request.Request(f"{url.rstrip('/')}/streams/{stream}/{what}")
        if API_KEY in os.environ:
            request.add_header("Authorization", f"Bearer {os.environ[API_KEY]}")
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise ShoalError(f"{url}: {_said(error)}") from error
            problems.append(_said(error))
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            problems.append(f"{url} does not answer ({reason}): is it running?")
    raise NotFound(problems[0])


def _gateways(network: NetworkFile, stream: StreamId) -> list[str]:
    """Those of the trackers, in the order in which nodes go to them."""
    from shoal.base.errors import ConfigError
    from shoal.protocols.streams.ring import TrackerRing

    contacts = tuple(entry.contact() for entry in network.trackers)
    known = {entry.contact().node: entry.gateway for entry in network.trackers}
    ring = TrackerRing(contacts, network.pinned_trackers).order(stream) if contacts else ()
    found = [known[contact.node] for contact in ring]
    named = [url for url in found if url is not None]
    if not named:
        raise ConfigError(
            "trackers.gateway: the network file names none: add it to [[trackers]], as in gateway ="
            ' "http://127.0.0.1:7780", or give --gateway'
        )
    return named


def _whole(id: str, network: NetworkFile) -> StreamId:
    """A stream as people write it: /path is of the own key."""
    from shoal.base.errors import UsageError
    from shoal.base.ids import parse_stream_id, show_node_id
    from shoal.identity import SystemEntropy
    from shoal.node.credentials import key_of

    if id.startswith("/"):
        if network.node.key is None:
            raise UsageError(
                f"stream {id!r}: whose? write 0xOWNER{id}, or name a key under [node] of the"
                " network file"
            )
        key = asyncio.run(key_of(network, SystemEntropy()))
        id = show_node_id(key.address) + id
    return parse_stream_id(id)


def _said(error: urllib.error.HTTPError) -> str:
    """What a gateway says is wrong, or else the status."""
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"
