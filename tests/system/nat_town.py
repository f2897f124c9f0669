"""Two nodes behind a NAT of each kind, and two without, all linked with all by WebRTC.

    python -m tests.system.nat_town [KIND ...]

Says for each node what its links are like, and how many messages it got, a line of JSON each; or
on stderr why this machine does not let it, and ends with 2.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from shoal.base.ids import NodeId, parse_node_id
from shoal.config.sections import (
    WEBRTC_ADDRESS,
    NodeSection,
    PeerEntry,
    TrackerSection,
    WebRTCSection,
)
from shoal.identity import SystemEntropy
from shoal.node import NetworkFile, Node
from shoal_lab.testbed.namespaces import die_with_parent
from tests.system.nat_wiring import (
    KINDS,
    OPEN,
    SERVER,
    TURN_PASSWORD,
    TURN_PORT,
    TURN_USER,
    NoNats,
    connect,
    enter_namespace,
    find_tools,
    fork_into_namespace,
    make_bridge,
    make_nat,
    start_turnserver,
)

EACH = 2
MESSAGES = 5
PATIENCE_S = 100.0
TRACKER_PORT = 7700
TURN = f"{SERVER}:{TURN_PORT}"


class Said(msgspec.Struct):
    """What one node has to say."""

    id: str
    kind: str
    links: dict[str, bool]
    """All others, and whether our end of the link is at the TURN server."""
    linked_s: float
    """How long it took to be linked with all of them."""
    received: int


def node_file(tracker: PeerEntry) -> NetworkFile:
    """The network file of every node."""
    webrtc = WebRTCSection(
        stun=(f"stun:{TURN}",),
        turn=(f"turn:{TURN}?transport=udp",),
        user=TURN_USER,
        password="env:NAT_TURN_PASSWORD",
    )
    node = NodeSection(listen=(WEBRTC_ADDRESS,))
    return NetworkFile(node=node, trackers=(tracker,), webrtc=webrtc)


async def live(
    network: NetworkFile, stream_id: str, kind: str, others: int, say: int, told: int
) -> None:
    """Be linked with all others, publish, hear what they publish, and stay until all have."""
    began_s = time.monotonic()
    async with Node.open(network) as node:
        stream = await node.open_stream(stream_id)
        async with stream.subscribe() as messages:
            async with asyncio.timeout(PATIENCE_S):
                while node.degree(stream.id) < others:
                    await asyncio.sleep(0.05)
                linked_s = time.monotonic() - began_s
                # A message to say that we are complete; who has it from all others publishes.
                await stream.publish({"complete": True})
                heard: Counter[bool] = Counter()
                published = False
                while heard[False] < MESSAGES * (others + 1):
                    message = await anext(messages)
                    heard[message.content["complete"]] += 1
                    if heard[True] == others + 1 and not published:
                        published = True
                        for number in range(MESSAGES):
                            await stream.publish({"complete": False, "number": number})
            tracker = parse_node_id(network.trackers[0].id)
            connections = node.host.connections.items()
            links = {peer.hex(): is_relayed(link) for peer, link in connections if peer != tracker}
            said = Said(node.id.hex(), kind, links, linked_s, heard[False])
            os.write(say, msgspec.json.encode(said) + b"\n")
            # Whoever leaves takes its links along, and others may still be counting theirs.
            await asyncio.to_thread(os.read, told, 1)


def is_relayed(link: Any) -> bool:
    """Whether our end of a link is at the TURN server. The other end may be, too."""
    sctp = link._carrier._connection.sctp
    pair = sctp.transport.ice_transport.get_selected_candidate_pair()
    return bool(pair.local.type.value == "relay")


async def track(degree: int, port: int, say: int) -> None:
    """A tracker, which says its id, and goes on."""
    network = NetworkFile(
        node=NodeSection(listen=(f"ws://{SERVER}:{port}",)), tracker=TrackerSection(degree)
    )
    async with Node.open(network) as node:
        os.write(say, node.id)
        await asyncio.Event().wait()


def main(kinds: list[str]) -> None:
    os.environ["NAT_TURN_PASSWORD"] = TURN_PASSWORD
    find_tools()
    enter_namespace()
    make_bridge()
    places = [kind for kind in kinds for _ in range(EACH)]
    with tempfile.TemporaryDirectory() as folder:
        server = start_turnserver(Path(folder))
        try:
            for line in populate(places):
                print(line, flush=True)
        finally:
            server.kill()
            server.wait()


def populate(places: list[str]) -> list[str]:
    """Nodes behind their NATs, and what each says in the end."""
    stream = f"0x{SystemEntropy().token(20).hex()}/nats"
    others = len(places) - 1
    tracker, entry = start_tracker(max(3, others))
    network = node_file(entry)
    children = []
    for number, kind in enumerate(places, 1):
        # Before the pipes are made, whose ends it would hold open.
        box = 0 if kind == OPEN else fork_into_namespace(lambda: time.sleep(10 * PATIENCE_S))
        (told, tell), (hear, say) = os.pipe(), os.pipe()

        def work(kind: str = kind, told: int = told, say: int = say) -> None:
            os.read(told, 1)  # the wires are there
            uvloop.run(live(network, stream, kind, others, say, told))

        host = fork_into_namespace(work)
        os.close(say)
        if kind == OPEN:
            connect(number, host, "eth0")
        else:
            make_nat(number, kind, box, host)
        children.append((tell, hear))
    for tell, _ in children:
        os.write(tell, b"x")
    lines = []
    for _, hear in children:
        with os.fdopen(hear) as said:
            lines.append(said.readline().strip())
    for tell, _ in children:
        os.write(tell, b"x")
    os.kill(tracker, signal.SIGKILL)
    for _ in range(1 + len(places)):
        os.wait()
    return lines


def start_tracker(degree: int) -> tuple[int, PeerEntry]:
    """In this namespace: its process, and how nodes know it."""
    (hear, say), parent = os.pipe(), os.getpid()
    process = os.fork()
    if not process:
        try:
            die_with_parent(parent)
            uvloop.run(track(degree, TRACKER_PORT, say))
        finally:
            os._exit(1)
    id = NodeId(os.read(hear, 20))
    return process, PeerEntry(f"0x{id.hex()}", (f"ws://{SERVER}:{TRACKER_PORT}",))


if __name__ == "__main__":
    try:
        main(sys.argv[1:] or list(KINDS))
    except NoNats as error:
        print(f"nat_town: {error}", file=sys.stderr)
        sys.exit(2)
