"""Random lives of a registry beside plain dictionaries: after every step they say the same.

Time passes by a clock of the test: the chain's, and that of whoever asks.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shoal.base.errors import NotFound, RegistryRefused
from shoal.base.ids import NodeId, StreamId, show_node_id
from shoal.identity import PrivateKey, SeededEntropy
from shoal.kernel.access import Permission
from shoal.registry.block_file import BlockFile
from shoal.registry.config import RegistrySection
from shoal.registry.contract_registry import ContractRegistry
from shoal.registry.opening import STREAMS_BLOCK, deploy
from shoal.registry.port import EVERYBODY, FOREVER, StreamTerms
from tests.registry.stage import ADMIN, ALICE, BOB, CAROL

pytest.importorskip("pyrevm", reason="no EVM is made for this Python")
from shoal.registry.embedded import EmbeddedChain

T = TypeVar("T")
START_S = 2_000_000_000  # after any day on which this test runs: permissions end in its own time
KEYS = {key.address: key for key in (ALICE, BOB, CAROL)}
PATHS = ["a", "b"]
SECTION = RegistrySection(folder="unused", poll_s=3600.0, staleness_s=1e9)

keys = st.sampled_from(list(KEYS.values()))
streams = st.builds(
    lambda owner, path: StreamId(f"{show_node_id(owner)}/{path}"),
    st.sampled_from([ALICE.address, BOB.address]),
    st.sampled_from(PATHS),
)
whom = st.lists(st.sampled_from([*KEYS, EVERYBODY]), min_size=1, max_size=3)
kinds = st.integers(1, 31).map(Permission)
lives_s = st.sampled_from([1, 2, 10, None])
terms = st.builds(StreamTerms, metadata=st.text(max_size=5), partitions=st.integers(1, 3))


class Model(msgspec.Struct):
    """What the rules say, in the plainest way."""

    now_s: int = START_S
    streams: dict[StreamId, StreamTerms] = {}
    ends_s: dict[tuple[StreamId, NodeId, Permission], int] = {}

    def holds(self, stream: StreamId, who: NodeId, kind: Permission, public: bool) -> bool:
        if stream not in self.streams:
            return False
        if stream.startswith(show_node_id(who)):
            return True
        asked = (who, EVERYBODY) if public else (who,)
        return any(self.now_s < self.ends_s.get((stream, each, kind), 0) for each in asked)

    def may_set(self, stream: StreamId, by: NodeId, whom: list[NodeId], kinds: Permission) -> bool:
        owner = stream.startswith(show_node_id(by))
        simple = not kinds & (Permission.EDIT | Permission.DELETE | Permission.GRANT)
        return (
            self.holds(stream, by, Permission.GRANT, public=False)
            and (simple or owner)
            and not any(stream.startswith(show_node_id(who)) for who in whom)
            and (simple or EVERYBODY not in whom)
        )


class RegistryLife(RuleBasedStateMachine):
    """One registry, three keys, two paths each, and a clock."""

    @initialize()
    def begin(self) -> None:
        self.model = Model()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp())
        self.file = self.folder / "blocks"
        self.registries: dict[NodeId, ContractRegistry] = {}
        chain = EmbeddedChain.create(self.file, SeededEntropy("chain"), self.clock)
        self.run(deploy(chain, SECTION, ADMIN))
        self.run(chain.close())
        self.open_all()

    def clock(self) -> float:
        return self.model.now_s

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def open_all(self) -> None:
        for address, key in KEYS.items():
            chain = EmbeddedChain(BlockFile(self.file), self.clock)
            contract = chain.contract_of(STREAMS_BLOCK)
            opened = ContractRegistry.open(chain, contract, SECTION, key)
            self.registries[address] = self.run(opened)

    def close_all(self) -> None:
        for registry in self.registries.values():
            self.run(registry.close())

    def attempt(self, work: Coroutine[Any, Any, object], allowed: bool) -> bool:
        """Do it, if the model says that one may; see it refused otherwise."""
        if allowed:
            self.run(work)
        else:
            with pytest.raises(RegistryRefused):
                self.run(work)
        for registry in self.registries.values():
            self.run(registry._follower.poll())
        return allowed

    @rule(key=keys, path=st.sampled_from(PATHS), terms=terms)
    def create(self, key: PrivateKey, path: str, terms: StreamTerms) -> None:
        stream = StreamId(f"{show_node_id(key.address)}/{path}")
        work = self.registries[key.address].create(f"/{path}", terms)
        if self.attempt(work, stream not in self.model.streams):
            self.model.streams[stream] = terms

    @rule(key=keys, stream=streams, terms=terms)
    def edit(self, key: PrivateKey, stream: StreamId, terms: StreamTerms) -> None:
        allowed = self.model.holds(stream, key.address, Permission.EDIT, public=False)
        if self.attempt(self.registries[key.address].edit(stream, terms), allowed):
            self.model.streams[stream] = terms

    @rule(key=keys, stream=streams)
    def delete(self, key: PrivateKey, stream: StreamId) -> None:
        allowed = self.model.holds(stream, key.address, Permission.DELETE, public=False)
        if self.attempt(self.registries[key.address].delete(stream), allowed):
            del self.model.streams[stream]
            self.model.ends_s = {
                place: end for place, end in self.model.ends_s.items() if place[0] != stream
            }

    @rule(key=keys, stream=streams, whom=whom, kinds=kinds, life_s=lives_s)
    def grant(
        self,
        key: PrivateKey,
        stream: StreamId,
        whom: list[NodeId],
        kinds: Permission,
        life_s: int | None,
    ) -> None:
        end_s = FOREVER if life_s is None else self.model.now_s + life_s
        work = self.registries[key.address].grant(stream, whom, kinds, end_s)
        if self.attempt(work, self.model.may_set(stream, key.address, whom, kinds)):
            self.set_ends(stream, whom, kinds, end_s)

    @rule(key=keys, stream=streams, whom=whom, kinds=kinds)
    def revoke(
        self, key: PrivateKey, stream: StreamId, whom: list[NodeId], kinds: Permission
    ) -> None:
        work = self.registries[key.address].revoke(stream, whom, kinds)
        if self.attempt(work, self.model.may_set(stream, key.address, whom, kinds)):
            self.set_ends(stream, whom, kinds, 0)

    def set_ends(self, stream: StreamId, whom: list[NodeId], kinds: Permission, end_s: int) -> None:
        for who in whom:
            for kind in Permission:
                if kind & kinds:
                    self.model.ends_s[(stream, who, kind)] = end_s

    @rule(seconds=st.integers(1, 5))
    def wait(self, seconds: int) -> None:
        self.model.now_s += seconds

    @rule()
    def restart(self) -> None:
        self.close_all()
        self.open_all()

    @invariant()
    def all_say_the_same(self) -> None:
        for stream in {*self.model.streams, *_all_streams()}:
            for registry in self.registries.values():
                self.check(registry, stream)

    def check(self, registry: ContractRegistry, stream: StreamId) -> None:
        if stream in self.model.streams:
            assert self.run(registry.stream(stream)) == self.model.streams[stream]
        else:
            with pytest.raises(NotFound):
                self.run(registry.stream(stream))
        for who in KEYS:
            permissions = self.run(registry.permissions(stream, who))
            for kind in Permission:
                expected = self.model.holds(stream, who, kind, public=True)
                assert permissions.holds(kind, self.model.now_s) == expected

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.close_all()
            self.loop.close()
            shutil.rmtree(self.folder)


def _all_streams() -> list[StreamId]:
    return [StreamId(f"{show_node_id(who)}/{path}") for who in KEYS for path in PATHS]


TestRegistryLife = RegistryLife.TestCase
TestRegistryLife.settings = settings(max_examples=10, stateful_step_count=20)
