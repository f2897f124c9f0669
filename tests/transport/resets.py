"""Resets connections at every moment of their youth, as dialler and as door, under uvloop.

python -m tests.transport.resets SCHEME

In a process of its own, since this once ended the process, or kept it from ending: libuv aborts
when it is made to wait for a descriptor that is closed.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import sys
import time
from contextlib import suppress
from random import Random

import uvloop

from shoal.transport.port import DialFailed
from shoal.transport.websocket import WebSocketTransport
from tests.transport.recorder import Recorder, until
from tests.transport.stage import credentials, gathered, serving_context

TURNS_MAX = 30
CROWD, DIALS_EACH = 8, 60
RESET = struct.pack("ii", 1, 0)  # close at once, and throw away what is under way
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
ANSWER = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
TLS_OPENING = b"\x16\x03\x01\x02\x00\x01"  # of a handshake that does not go on


async def reset_after(sock: socket.socket, turns: int) -> None:
    """Reset a connection so many turns of the loop from now."""
    for _ in range(turns):
        await asyncio.sleep(0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()


async def reset_next(door: socket.socket, turns: int) -> None:
    """The same with the next connection that comes."""
    while True:
        try:
            sock, _ = door.accept()
        except BlockingIOError:
            await asyncio.sleep(0)
        else:
            await reset_after(sock, turns)
            return


async def reset_dials(scheme: str, transport: WebSocketTransport) -> None:
    """Whom we dial hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.setblocking(False)
        address = f"{scheme}://127.0.0.1:{door.getsockname()[1]}"
        for turns in range(TURNS_MAX):
            resetting = asyncio.create_task(reset_next(door, turns))
            try:
                await transport.dial(address, credentials("b").key.address)
            except DialFailed:
                await resetting
            else:
                raise AssertionError("nobody proved anything")


async def reset_a_crowd(scheme: str, transport: WebSocketTransport) -> None:
    """Whom we dial hangs up, in a thread: at moments that no turn of our loop can hit."""
    door = socket.create_server(("127.0.0.1", 0), backlog=CROWD)
    address = f"{scheme}://127.0.0.1:{door.getsockname()[1]}"
    rng = Random(1)

    def reset_all() -> None:
        for _ in range(CROWD * DIALS_EACH):
            sock, _ = door.accept()
            moment = rng.random()
            if moment < 0.3:
                time.sleep(rng.random() * 0.001)
            elif moment > 0.7:
                sock.recv(1000)
                sock.send(ANSWER)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            sock.close()

    async def dial() -> None:
        for _ in range(DIALS_EACH):
            with suppress(DialFailed):
                await transport.dial(address, credentials("b").key.address)

    with door:
        await gathered(asyncio.to_thread(reset_all), *(dial() for _ in range(CROWD)))


async def reset_visits(scheme: str, transport: WebSocketTransport, told: Recorder) -> None:
    """Who dials us hangs up, having said nothing, something, or enough for an upgrade."""
    listener = await transport.listen(f"{scheme}://127.0.0.1:0")
    port = int(listener.address.rpartition(":")[2])
    visits = 0
    for said in (b"", UPGRADE[:20], UPGRADE, UPGRADE + b"\x82\x80\0\0\0\0", TLS_OPENING):
        for turns in range(TURNS_MAX):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.sendall(said)
            await reset_after(sock, turns)
            visits += 1
    await until(lambda: len(told.failures) == visits)


async def main(scheme: str) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
    told, tls = Recorder(), serving_context() if scheme == "wss" else None
    async with WebSocketTransport(credentials("a"), told, tls=tls) as transport:
        await reset_a_crowd(scheme, transport)
        await reset_dials(scheme, transport)
        await reset_visits(scheme, transport, told)
    await until(lambda: len(asyncio.all_tasks()) == 1)
    gc.collect()
    assert not complaints, complaints
    print("alive")


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
