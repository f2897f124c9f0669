"""What a registry answers per CPU-second, embedded and over JSON-RPC, and what changes cost in gas.

    .venv/bin/python -m benchmarks.registry [--json] [--reads 5000] [--rounds 3]

Reads are of one address's permissions on one stream.

    from the cache       what a hop asks for every message
    from the contract    what it asks once for an address: the EVM in this process; or anvil, a
                         process of its own whose CPU time does not count, 64 questions at once

Beside them signature checks of the same run, which every message needs as well. The best of several
rounds, as others share the machine. Changes: transactions signed, executed and durable per
CPU-second. Gas is anvil's count, of contracts and streams that were not there before.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from shoal.base.ids import Contact, NodeId, StreamId
from shoal.identity import PrivateKey, SeededEntropy, verify
from shoal.kernel.access import Permission
from shoal.registry.contract_registry import ContractRegistry
from shoal.registry.port import Directory, StreamTerms
from tests.registry.stage import ADMIN, ALICE, BOB, Stage, anvil_stage, embedded_stage

BATCH = 64
CHANGES = 50
CHECKS = 2_000
STREAM = "/city/vehicles"


def strangers(count: int, seed: int) -> list[NodeId]:
    """Addresses that nobody has asked for yet."""
    entropy = SeededEntropy(f"strangers {seed}")
    return [NodeId(entropy.token(20)) for _ in range(count)]


async def per_cpu_s(count: int, work: Callable[[], Awaitable[None]]) -> float:
    begin_s = time.process_time()
    await work()
    return count / max(time.process_time() - begin_s, 1e-9)


async def signature_checks(rounds: int) -> float:
    key, body = PrivateKey.generate(SeededEntropy("key")), bytes(300)
    signature = key.sign(body)

    async def check() -> None:
        for _ in range(CHECKS):
            verify(key.address, body, signature)

    return max([await per_cpu_s(CHECKS, check) for _ in range(rounds)])


async def measure(stage: Stage, reads: int, rounds: int) -> dict[str, float]:
    """Rates of one registry."""
    alice = await stage.open(ALICE, poll_s=1.0, staleness_s=1e9)
    stream = await alice.create(STREAM, StreamTerms())
    await alice.permissions(stream, BOB.address)

    async def from_cache() -> None:
        for _ in range(20 * reads):
            alice.permitted(stream, BOB.address, Permission.PUBLISH)

    figures: dict[str, list[float]] = {}
    for number in range(rounds):
        asked = strangers(reads, number)

        async def from_contract(asked: list[NodeId] = asked) -> None:
            for start in range(0, len(asked), BATCH):
                some = asked[start : start + BATCH]
                await asyncio.gather(*(alice.permissions(stream, who) for who in some))

        async def change(number: int = number) -> None:
            for n in range(CHANGES):
                ends_s = 2**40 + number * CHANGES + n
                await alice.grant(stream, [BOB.address], Permission.PUBLISH, ends_s)

        for name, count, work in (
            ("reads from the cache", 20 * reads, from_cache),
            ("reads from the contract", reads, from_contract),
            ("changes", CHANGES, change),
        ):
            figures.setdefault(name, []).append(await per_cpu_s(count, work))
    return {name: max(rates) for name, rates in figures.items()}


async def gas(stage: Stage) -> dict[str, int]:
    """What each change took."""
    alice, admin = await stage.open(ALICE), await stage.open(ADMIN)
    used: dict[str, int] = {}

    async def note(name: str, registry: ContractRegistry, work: Awaitable[object]) -> None:
        await work
        block = await stage.anvil.ask("eth_getBlockByNumber", hex(registry.seen.number), False)
        used[name] = int(block["gasUsed"], 16)

    for number, name in ((1, "deploy a directory"), (3, "deploy Streams")):
        block = await stage.anvil.ask("eth_getBlockByNumber", hex(number), False)
        used[name] = int(block["gasUsed"], 16)
    stream = StreamId(f"0x{ALICE.address.hex()}/gas")
    publish, both = Permission.PUBLISH, Permission.PUBLISH | Permission.SUBSCRIBE
    some = StreamTerms("m" * 100, 4, 4, tuple(strangers(1, 1)), tuple(strangers(2, 2)))
    many = strangers(64, 3)
    contact = Contact(BOB.address, ("wss://tracker.example:7700",))
    for name, registry, work in (
        ("create a stream", alice, lambda: alice.create("/gas", StreamTerms())),
        ("create, 100 bytes of metadata, 3 nodes", alice, lambda: alice.create("/more", some)),
        ("grant to one", alice, lambda: alice.grant(stream, [BOB.address], both)),
        ("grant more to one", alice, lambda: alice.grant(stream, [BOB.address], publish, 2**40)),
        ("revoke from one", alice, lambda: alice.revoke(stream, [BOB.address], publish)),
        ("grant to 64", alice, lambda: alice.grant(stream, many, both)),
        ("edit a stream", alice, lambda: alice.edit(stream, StreamTerms(partitions=2))),
        ("delete a stream", alice, lambda: alice.delete(stream)),
        ("list a node", admin, lambda: admin.put_node(Directory.TRACKERS, contact)),
        ("remove a node", admin, lambda: admin.remove_node(Directory.TRACKERS, BOB.address)),
    ):
        await note(name, registry, work())
    return used


async def run(reads: int, rounds: int) -> dict[str, dict[str, float]]:
    results: dict[str, dict[str, float]] = {}
    checks = await signature_checks(rounds)
    results["beside"] = {"signature checks": checks}
    for name, make in (("embedded", embedded_stage), ("JSON-RPC", anvil_stage)):
        print(f"{name} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            stage = await make(Path(folder))
            try:
                results[name] = await measure(stage, reads, rounds)
                if name == "JSON-RPC":
                    results["gas"] = dict(await gas(stage))
            finally:
                await stage.close()
                if name == "JSON-RPC":
                    stage.anvil.stop()
    return results


def show(results: dict[str, dict[str, float]]) -> None:
    checks = results["beside"]["signature checks"]
    print(
        f"{'per CPU-second':<26}{'embedded':>12}{'of checks':>11}{'JSON-RPC':>12}{'of checks':>11}"
    )
    print(f"{'signature checks':<26}{checks:>12,.0f}")
    for name, rate in results["embedded"].items():
        other = results["JSON-RPC"][name]
        print(
            f"{name:<26}{rate:>12,.0f}{rate / checks:>11.2f}{other:>12,.0f}{other / checks:>11.2f}"
        )
    print(f"\n{'gas':<40}")
    for name, amount in results["gas"].items():
        print(f"{name:<40}{amount:>12,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--reads", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    results = asyncio.run(run(options.reads, options.rounds))
    if options.json:
        print(msgspec.json.encode(results).decode())
    else:
        show(results)


if __name__ == "__main__":
    main()
