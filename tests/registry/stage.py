"""Registries for tests: embedded, and on anvil."""

from __future__ import annotations

import asyncio
import gc
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from shoal.base.ids import NodeId, show_node_id
from shoal.identity import PrivateKey, SeededEntropy
from shoal.registry.config import RegistrySection
from shoal.registry.contract_registry import ContractRegistry
from shoal.registry.opening import deploy_registry, open_registry
from tests.registry.anvil import Anvil

ADMIN, ALICE, BOB, CAROL = (
    PrivateKey.generate(SeededEntropy(name)) for name in ("admin", "alice", "bob", "carol")
)
SCENARIO_S_MAX = 60.0


class Stage:
    """One deployed registry, opened by as many as a test needs."""

    def __init__(self, section: RegistrySection, folder: Path, anvil: Anvil | None = None) -> None:
        self.section = section
        self.folder = folder
        self._anvil = anvil
        self._opened: list[ContractRegistry] = []

    @property
    def anvil(self) -> Anvil:
        assert self._anvil is not None
        return self._anvil

    async def open(self, key: PrivateKey | None = ALICE, **settings: object) -> ContractRegistry:
        """The registry, as this key sees it."""
        section = replace(self.section, **settings)
        registry = await open_registry(section, self.folder, key)
        self._opened.append(registry)
        return registry

    async def close(self) -> None:
        for registry in self._opened:
            await registry.close()


Scenario = Callable[[Stage], Awaitable[None]]


async def embedded_stage(folder: Path) -> Stage:
    pytest.importorskip("pyrevm", reason="no EVM is made for this Python")
    section = RegistrySection(folder="registry", poll_s=0.02)
    await deploy_registry(section, folder, ADMIN, SeededEntropy("chain"))
    return Stage(section, folder)


async def anvil_stage(folder: Path) -> Stage:
    """A registry on a chain of its own; blocks count at once, unless a test says otherwise."""
    anvil = Anvil(folder)
    try:
        await anvil.start()
        await anvil.enrich(*(key.address for key in (ADMIN, ALICE, BOB, CAROL)))
        section = RegistrySection(url=anvil.url, poll_s=0.02, finality_blocks=0, write_s=20.0)
        contract = await deploy_registry(section, folder, ADMIN, SeededEntropy("none"))
    except BaseException:
        anvil.stop()
        raise
    return Stage(replace(section, contract=show_node_id(contract)), folder, anvil)


STAGES = {"embedded": embedded_stage, "anvil": anvil_stage}


def on_every_registry(scenario: Scenario) -> Callable[[str], None]:
    """Turn a scenario into a test for each implementation."""

    @pytest.mark.parametrize("kind", list(STAGES))
    def test(kind: str) -> None:
        perform(kind, scenario)

    test.__name__ = test.__qualname__ = scenario.__name__
    return test


def on_anvil(scenario: Scenario) -> Callable[[], None]:
    """Turn a scenario into a test over JSON-RPC."""

    def test() -> None:
        perform("anvil", scenario)

    test.__name__ = test.__qualname__ = scenario.__name__
    return test


def perform(kind: str, scenario: Scenario) -> None:
    """Run a scenario on a new registry, and leave nothing behind."""

    async def main(folder: Path) -> None:
        stage = await STAGES[kind](folder)
        try:
            async with asyncio.timeout(SCENARIO_S_MAX):
                await scenario(stage)
        finally:
            await stage.close()
            if kind == "anvil":
                stage.anvil.stop()
        assert len(asyncio.all_tasks()) == 1, "a task was left behind"

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
    gc.collect()  # what was not closed warns now, in the test that left it


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for something to become true."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def address(number: int) -> NodeId:
    """Somebody."""
    return NodeId(number.to_bytes(20))
