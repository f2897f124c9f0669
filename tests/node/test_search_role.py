"""The search role: what the file says, and who begins a network."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from shoal.base.errors import UsageError
from shoal.base.ids import Contact, NodeId, show_node_id
from shoal.base.units import S_NS
from shoal.config.sections import PeerEntry, SearchSection
from shoal.node import NetworkFile, Node
from shoal.node.search.client import SearchRole, cached_hosts, write_host_cache
from shoal.protocols.search.config import SearchConfig
from tests.node.network import free_port, run
from tests.node.search import ALICE
from tests.node.test_life import keystore
from tests.transport.recorder import until

ENTRY = PeerEntry("0x" + "11" * 20, ("ws://127.0.0.1:7700",))
OWN = PeerEntry(show_node_id(ALICE.address), ("ws://127.0.0.1:7701",))
CACHED = Contact(NodeId(b"\x22" * 20), ("ws://127.0.0.1:7702",))


def role(*cached: Contact, **settings: Any) -> SearchRole:
    section = SearchSection(**settings)
    return SearchRole(NetworkFile(search=section), section, ALICE, Random(1), cached)


def test_what_the_file_says_is_what_the_machine_goes_by() -> None:
    rates = {"upload_kib_s": 64.5, "download_kib_s": 2}
    config = role(locations=5, confidence=0.9, **rates).machine.config
    assert (config.locations, config.confidence) == (5, 0.9)
    assert (config.upload_bytes_s, config.download_bytes_s) == (66_048, 2048)
    assert role().machine.config == SearchConfig()
    assert role(client=True, bootstrap=(ENTRY,)).machine.client


def test_who_names_others_enters_through_them_and_those_of_its_caches() -> None:
    made = role(CACHED, Contact(ALICE.address), bootstrap=(OWN, ENTRY))
    assert made.bootstrap == [ENTRY.contact(), CACHED]
    assert made.later == []


@pytest.mark.parametrize("bootstrap", [(), (OWN,)])
def test_the_first_begins_alone_and_looks_for_those_it_knew(bootstrap: Any) -> None:
    made = role(CACHED, bootstrap=bootstrap)
    assert (made.bootstrap, made.later) == ([], [CACHED])


@pytest.mark.parametrize("settings", [{"web_cache": "http://x/"}, {"client": True}])
def test_who_has_another_way_in_is_not_the_first(settings: dict[str, Any]) -> None:
    made = role(CACHED, host_cache="hosts", **settings)
    assert (made.bootstrap, made.later) == ([CACHED], [])


def test_the_host_cache_is_read_before_the_start(tmp_path: Path) -> None:
    write_host_cache(tmp_path / "hosts", [CACHED])

    def network(**settings: Any) -> NetworkFile:
        return NetworkFile(search=SearchSection(**settings), folder=str(tmp_path))

    assert asyncio.run(cached_hosts(network(host_cache="hosts"))) == [CACHED]
    assert asyncio.run(cached_hosts(network(host_cache="other"))) == []
    assert asyncio.run(cached_hosts(network())) == []
    assert asyncio.run(cached_hosts(NetworkFile())) == []


def test_a_node_without_search_says_what_is_missing() -> None:
    async def main() -> None:
        async with Node.open(NetworkFile()) as node:
            with pytest.raises(UsageError, match=r"not in the search network: add \[search\]"):
                await node.put({})
            with pytest.raises(UsageError, match=r"add \[search\]"):
                node.search("x")
            with pytest.raises(UsageError, match=r"add \[search\]"):
                node.watch("x")
        with pytest.raises(UsageError, match="this node is closed"):
            node.search("x")

    run(main())


def test_one_list_that_names_this_node_makes_it_a_founder() -> None:
    listed = role(CACHED, bootstrap=(OWN, ENTRY))
    assert listed.machine._founders == (ALICE.address, ENTRY.contact().node)
    assert role(CACHED, bootstrap=(ENTRY,)).machine._founders == ()


def test_two_bootstrap_nodes_of_one_file_begin_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/how-to-own-network.md says: each machine has its own part and the same entries."""
    monkeypatch.setattr(
        "shoal.node.search.client.SearchConfig",
        lambda **given: SearchConfig(**{**given, "found_ns": S_NS, "quick_beat_ns": S_NS // 5}),
    )
    names, common = ("ann", "bob"), ""
    for name in names:
        id = show_node_id(keystore(tmp_path / f"{name}.key", name, passphrase="").address)
        address = f"ws://127.0.0.1:{free_port()}"
        (tmp_path / f"{name}.own").write_text(
            f'[node]\nkey = "{name}.key"\nlisten = ["{address}"]\n[dht]\n[search]\n'
        )
        entry = f'id = "{id}"\naddresses = ["{address}"]\n'
        common += f"[[dht.bootstrap]]\n{entry}[[search.bootstrap]]\n{entry}"

    def network(name: str) -> Path:
        file = tmp_path / f"{name}.toml"
        file.write_text((tmp_path / f"{name}.own").read_text() + common)
        return file

    async def main() -> None:
        async with Node.open(network("ann")) as ann:
            await until(lambda: ann.readiness.ready)  # alone, it is the first
            await ann.put({"said": "hello"}, name="x")
            async with Node.open(network("bob")) as bob:
                await until(lambda: bob.readiness.ready)
                found = await bob.get("x", owner=show_node_id(ann.id))
                assert found.content == {"said": "hello"}

    asyncio.run(main())  # the thread that opened the keystores is the loop's own
