"""A chain of our own: anvil, as a process on loopback."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from scripts.contract_tools import anvil
from shoal.base.errors import RegistryUnavailable
from shoal.base.ids import NodeId, show_node_id
from shoal.registry.rpc_chain import JsonRpc

CHAIN_ID = 31_337
ETHER = 10**18
START_S_MAX = 30.0


class Anvil:
    """Started and stopped as often as a test wants, on one port, with what it knew."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Give it its state, and wait until it answers."""
        command = [str(anvil()), "--host", "127.0.0.1", "--port", str(self._port), "--quiet"]
        command += ["--chain-id", str(CHAIN_ID), "--accounts", "1", "--state", "state.json"]
        # A home of its own: it must not read or write the user's.
        environment = {"HOME": str(self._folder), "PATH": os.environ["PATH"]}
        self._process = subprocess.Popen(
            command, cwd=self._folder, env=environment, stdout=subprocess.DEVNULL
        )
        deadline_s = time.monotonic() + START_S_MAX
        while True:
            try:
                await self.ask("eth_chainId")
                return
            except RegistryUnavailable:
                assert self._process.poll() is None, "anvil has ended"
                assert time.monotonic() < deadline_s, "anvil does not answer"
                await asyncio.sleep(0.02)

    def stop(self) -> None:
        """End it in good order: it writes down its state."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            self._process.wait(START_S_MAX)
            self._process = None

    def freeze(self) -> None:
        """It takes connections, and answers nobody."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        # Its threads may answer until the last of them has heard of it.
        os.waitpid(self._process.pid, os.WUNTRACED)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def ask(self, method: str, *params: Any) -> Any:
        """Tell it something that is not in the chain port."""
        rpc = JsonRpc(self.url, 5.0)
        try:
            return await rpc.ask(method, *params)
        finally:
            await rpc.close()

    async def enrich(self, *accounts: NodeId) -> None:
        for account in accounts:
            await self.ask("anvil_setBalance", show_node_id(account), hex(1000 * ETHER))

    async def mine(self, blocks: int) -> None:
        await self.ask("anvil_mine", hex(blocks))
