"""One overlay of nodes that are dialled and nodes that are called; real sockets, real DTLS."""

from __future__ import annotations

from contextlib import AsyncExitStack

import msgspec

from shoal.config.sections import WEBRTC_ADDRESS, NodeSection, WebRTCSection
from shoal.node import Node
from tests.node.network import contents, network_of, open_tracker, run, take
from tests.transport.recorder import until

EACH = 6
MESSAGES = 20


def test_a_mixed_overlay_delivers_everything_to_everybody() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            tracker = await stack.enter_async_context(open_tracker(degree=4))
            dialled = network_of(tracker)
            called = msgspec.structs.replace(
                dialled, node=NodeSection(listen=(WEBRTC_ADDRESS,)), webrtc=WebRTCSection()
            )
            networks = [dialled] * EACH + [called] * EACH
            nodes = [await stack.enter_async_context(Node.open(one)) for one in networks]
            assert all(node.addresses == (WEBRTC_ADDRESS,) for node in nodes[EACH:])
            streams = [await node.open_stream(f"0x{nodes[0].id.hex()}/mixed") for node in nodes]
            inboxes = [await stack.enter_async_context(one.subscribe()) for one in streams]
            stream_id = streams[0].id
            await until(lambda: all(node.degree(stream_id) >= 3 for node in nodes))
            for number in range(MESSAGES):
                for stream in (streams[0], streams[-1]):
                    await stream.publish({"from": stream is streams[0], "number": number})
            expected = sorted((first, n) for first in (True, False) for n in range(MESSAGES))
            for inbox in inboxes:
                got = contents(await take(inbox, 2 * MESSAGES))
                assert sorted((one["from"], one["number"]) for one in got) == expected
            kinds = {kind_of(link) for node in nodes for link in node.host.connections.values()}
            assert kinds == {"WebSocketCarrier", "WebRTCCarrier"}

    run(main())


def kind_of(link: object) -> str:
    kind = type(link._carrier).__name__  # type: ignore[attr-defined]
    return "WebSocketCarrier" if kind in ("AcceptedCarrier", "DialledCarrier") else kind
