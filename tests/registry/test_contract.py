"""The contract of the registry port, for both implementations."""

from __future__ import annotations

import asyncio
import time

import pytest

from shoal.base.errors import NotFound, RegistryRefused, RegistryUnavailable, UsageError
from shoal.base.ids import Contact, NodeId, StreamId, show_node_id
from shoal.base.units import S_NS
from shoal.kernel.access import Permission, Verdict
from shoal.registry.chain import Block, Signed
from shoal.registry.port import (
    EVERYBODY,
    FOREVER,
    Answer,
    Change,
    Directory,
    Registry,
    StreamTerms,
)
from tests.registry.stage import (
    ADMIN,
    ALICE,
    BOB,
    CAROL,
    Stage,
    address,
    on_every_registry,
    until,
)

TERMS = StreamTerms('{"unit": "km/h"}', 4, 6, (address(1), address(2)), (address(3),))


async def answer(registry: Registry, stream: StreamId, who: bytes, kind: Permission) -> Answer:
    """What is known once it has been asked for."""
    await registry.permissions(stream, address(int.from_bytes(who)))
    return registry.permitted(stream, address(int.from_bytes(who)), kind)


@on_every_registry
async def test_a_stream_is_made_read_changed_and_ended(stage: Stage) -> None:
    alice, other = await stage.open(ALICE), await stage.open(None)
    stream = await alice.create("/city/vehicles", TERMS)
    assert stream == f"{show_node_id(ALICE.address)}/city/vehicles"
    assert await alice.stream(stream) == TERMS
    await until(lambda: other.seen.number >= alice.seen.number)
    assert await other.stream(stream) == TERMS
    with pytest.raises(RegistryRefused, match="there is such a stream already"):
        await alice.create("/city/vehicles", StreamTerms())
    await alice.edit(stream, StreamTerms())
    assert await alice.stream(stream) == StreamTerms()
    await alice.delete(stream)
    with pytest.raises(NotFound, match="shoal stream create /city/vehicles"):
        await alice.stream(stream)
    await until(lambda: other.seen.number >= alice.seen.number)
    with pytest.raises(NotFound):
        await other.stream(stream)
    with pytest.raises(RegistryRefused, match="there is no such stream"):
        await alice.delete(stream)


@on_every_registry
async def test_the_owner_may_do_everything_and_others_nothing(stage: Stage) -> None:
    alice = await stage.open(ALICE)
    stream = await alice.create("/private", StreamTerms())
    assert alice.permitted(stream, BOB.address, Permission.PUBLISH) is Answer.UNKNOWN
    assert (await alice.permissions(stream, ALICE.address)).expiries_s == (FOREVER,) * 5
    assert (await alice.permissions(stream, BOB.address)).expiries_s == (0,) * 5
    for kind in Permission:
        assert alice.permitted(stream, ALICE.address, kind) is Answer.YES
        assert alice.permitted(stream, BOB.address, kind) is Answer.NO
    nowhere = StreamId(f"{show_node_id(ALICE.address)}/nowhere")
    assert await answer(alice, nowhere, ALICE.address, Permission.PUBLISH) is Answer.NO
    bob = await stage.open(BOB)
    for refused in (
        bob.edit(stream, StreamTerms()),
        bob.delete(stream),
        bob.grant(stream, [BOB.address], Permission.PUBLISH),
        bob.revoke(stream, [CAROL.address], Permission.PUBLISH),
    ):
        with pytest.raises(RegistryRefused, match="the sender lacks the permission"):
            await refused


@on_every_registry
async def test_permissions_are_given_and_taken_one_kind_at_a_time(stage: Stage) -> None:
    alice = await stage.open(ALICE)
    stream = await alice.create("/private", StreamTerms())
    both = Permission.PUBLISH | Permission.SUBSCRIBE
    await alice.grant(stream, [BOB.address, CAROL.address], both)
    await alice.revoke(stream, [BOB.address], Permission.PUBLISH)
    assert await answer(alice, stream, BOB.address, Permission.PUBLISH) is Answer.NO
    assert await answer(alice, stream, BOB.address, Permission.SUBSCRIBE) is Answer.YES
    assert await answer(alice, stream, CAROL.address, Permission.PUBLISH) is Answer.YES
    await alice.grant(stream, [EVERYBODY], Permission.SUBSCRIBE)
    assert await answer(alice, stream, address(9), Permission.SUBSCRIBE) is Answer.YES
    assert await answer(alice, stream, address(9), Permission.PUBLISH) is Answer.NO
    await alice.revoke(stream, [EVERYBODY], Permission.SUBSCRIBE)
    assert await answer(alice, stream, address(9), Permission.SUBSCRIBE) is Answer.NO
    with pytest.raises(RegistryRefused, match="everybody may publish and subscribe at most"):
        await alice.grant(stream, [EVERYBODY], Permission.EDIT)
    with pytest.raises(RegistryRefused, match="the owner may do everything already"):
        await alice.revoke(stream, [ALICE.address], Permission.PUBLISH)


@on_every_registry
async def test_permissions_end_at_their_time_without_anybody_asking(stage: Stage) -> None:
    alice, bob = await stage.open(ALICE), await stage.open(BOB)
    stream = await alice.create("/private", StreamTerms())
    ends_s = int(time.time()) + 4
    await alice.grant(stream, [BOB.address], Permission.PUBLISH | Permission.EDIT, ends_s)
    permissions = await alice.permissions(stream, BOB.address)
    assert permissions.expiry_s(Permission.PUBLISH) == ends_s
    assert permissions.expiry_s(Permission.SUBSCRIBE) == 0
    assert alice.permitted(stream, BOB.address, Permission.PUBLISH) is Answer.YES
    await bob.edit(stream, StreamTerms(partitions=2))
    await asyncio.sleep(max(ends_s - time.time(), 0) + 0.02)
    assert alice.permitted(stream, BOB.address, Permission.PUBLISH) is Answer.NO
    with pytest.raises(RegistryRefused, match="the sender lacks the permission"):
        await bob.edit(stream, StreamTerms(partitions=3))
    with pytest.raises(UsageError, match="end before they begin"):
        await alice.grant(stream, [BOB.address], Permission.PUBLISH, ends_s)


@on_every_registry
async def test_who_may_grant_hands_on_publish_and_subscribe_only(stage: Stage) -> None:
    alice, bob = await stage.open(ALICE), await stage.open(BOB)
    stream = await alice.create("/private", StreamTerms())
    await alice.grant(stream, [BOB.address], Permission.GRANT)
    await bob.grant(stream, [CAROL.address], Permission.PUBLISH)
    assert await answer(bob, stream, CAROL.address, Permission.PUBLISH) is Answer.YES
    for kind in (Permission.EDIT, Permission.DELETE, Permission.GRANT):
        with pytest.raises(RegistryRefused, match="only the owner gives or takes"):
            await bob.grant(stream, [BOB.address], kind)
    with pytest.raises(RegistryRefused, match="lacks the permission"):
        await bob.edit(stream, StreamTerms())
    await alice.grant(stream, [BOB.address], Permission.DELETE)
    await bob.delete(stream)


@on_every_registry
async def test_a_stream_made_again_has_no_permissions_of_its_former_life(stage: Stage) -> None:
    alice = await stage.open(ALICE)
    stream = await alice.create("/again", StreamTerms())
    await alice.grant(stream, [BOB.address, EVERYBODY], Permission.PUBLISH)
    assert await answer(alice, stream, BOB.address, Permission.PUBLISH) is Answer.YES
    await alice.delete(stream)
    assert await answer(alice, stream, BOB.address, Permission.PUBLISH) is Answer.NO
    await alice.create("/again", StreamTerms())
    assert await answer(alice, stream, BOB.address, Permission.PUBLISH) is Answer.NO


@on_every_registry
async def test_a_verdict_says_what_counts_and_until_when(stage: Stage) -> None:
    alice, bob = await stage.open(ALICE), await stage.open(BOB, staleness_s=60.0)
    stream = await alice.create("/private", StreamTerms())
    ends_s = int(time.time()) + 30
    await alice.grant(stream, [BOB.address], Permission.PUBLISH, ends_s)
    await bob.refresh()
    verdict = await bob.verdict(stream, BOB.address)
    assert verdict == Verdict(Permission.PUBLISH, ends_s * S_NS), "the permission ends first"
    everything = await bob.verdict(stream, ALICE.address)
    assert everything.permissions == sum(Permission)
    assert 0 < everything.until_ns - time.time_ns() <= 60 * S_NS, "what is known becomes too old"
    await alice.revoke(stream, [BOB.address], Permission.PUBLISH)
    await bob.refresh()
    nothing = await bob.verdict(stream, BOB.address)
    assert (nothing.permissions, nothing.problem) == (0, "")


@on_every_registry
async def test_a_list_can_be_handed_over(stage: Stage) -> None:
    admin, bob = await stage.open(ADMIN), await stage.open(BOB)
    with pytest.raises(RegistryRefused, match="only the admin hands over"):
        await bob.hand_over(Directory.TRACKERS, BOB.address)
    await admin.hand_over(Directory.TRACKERS, BOB.address)
    await bob.refresh()
    assert await bob.admin(Directory.TRACKERS) == BOB.address
    assert await bob.admin(Directory.STORAGE_NODES) == ADMIN.address


@on_every_registry
async def test_directories_are_the_admins_and_addresses_the_nodes_own(stage: Stage) -> None:
    admin, bob = await stage.open(ADMIN), await stage.open(BOB)
    listed = [Contact(address(n), (f"ws://127.0.0.1:{n}",)) for n in range(1, 18)]
    for contact in listed:
        await admin.put_node(Directory.TRACKERS, contact)
    await admin.put_node(Directory.TRACKERS, Contact(BOB.address, ("ws://127.0.0.1:77",)))
    await admin.remove_node(Directory.TRACKERS, address(3))
    await bob.put_node(Directory.TRACKERS, Contact(BOB.address, ("ws://b:1", "wss://b:2")))
    found = await bob.nodes(Directory.TRACKERS)
    assert found == (
        *(contact for contact in listed if contact.node != address(3)),
        Contact(BOB.address, ("ws://b:1", "wss://b:2")),
    )
    assert await bob.nodes(Directory.STORAGE_NODES) == ()
    assert await bob.admin(Directory.TRACKERS) == ADMIN.address
    with pytest.raises(RegistryRefused, match="only the admin lists nodes"):
        await bob.put_node(Directory.STORAGE_NODES, Contact(BOB.address, ("ws://b:1",)))
    with pytest.raises(RegistryRefused, match="only the admin and the node itself"):
        await bob.put_node(Directory.TRACKERS, Contact(address(1), ("ws://evil:1",)))
    with pytest.raises(RegistryRefused, match="only the admin removes"):
        await bob.remove_node(Directory.TRACKERS, address(1))
    with pytest.raises(RegistryRefused, match="no such node"):
        await admin.remove_node(Directory.TRACKERS, address(3))


@on_every_registry
async def test_what_one_changes_another_sees_within_its_interval(stage: Stage) -> None:
    alice, other = await stage.open(ALICE), await stage.open(None)
    stream = await alice.create("/private", StreamTerms())
    await alice.grant(stream, [BOB.address], Permission.PUBLISH)
    await until(lambda: other.seen.number == alice.seen.number)
    assert await answer(other, stream, BOB.address, Permission.PUBLISH) is Answer.YES
    await alice.revoke(stream, [BOB.address], Permission.PUBLISH)
    # Nobody asks: what is cached is dropped by what the chain says.
    await until(
        lambda: other.permitted(stream, BOB.address, Permission.PUBLISH) is not Answer.YES, 2.0
    )
    assert await answer(other, stream, BOB.address, Permission.PUBLISH) is Answer.NO
    # One address is forgotten by a change of its own, and nobody else's.
    assert other.permitted(stream, EVERYBODY, Permission.PUBLISH) is Answer.NO


@on_every_registry
async def test_changes_are_told_from_the_beginning_and_live(stage: Stage) -> None:
    alice, admin = await stage.open(ALICE), await stage.open(ADMIN)
    stream = await alice.create("/told", StreamTerms())
    first = alice.seen.number
    told: list[Change] = []

    async def listen() -> None:
        async for change in admin.watch(first):
            told.append(change)  # noqa: PERF401 - it never ends

    await until(lambda: admin.seen.number >= first)
    listening = asyncio.create_task(listen())
    await until(lambda: len(told) == 1)
    await alice.grant(stream, [BOB.address], Permission.PUBLISH)
    await alice.edit(stream, StreamTerms(partitions=2))
    await admin.put_node(Directory.STORAGE_NODES, Contact(BOB.address, ("ws://b:1",)))
    await alice.delete(stream)
    await until(lambda: len(told) == 5)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    assert [(change.what, change.stream, change.who) for change in told] == [
        ("created", stream, None),
        ("permissions", stream, BOB.address),
        ("edited", stream, None),
        ("directory", None, BOB.address),
        ("deleted", stream, None),
    ]
    assert [change.block for change in told] == sorted(change.block for change in told)


@on_every_registry
async def test_what_does_not_fit_is_refused_before_it_is_signed(stage: Stage) -> None:
    alice = await stage.open(ALICE)
    before = (await alice.chain.head()).number
    longest = await alice.create("/" + "ä" * 106 + "x", StreamTerms("m" * 2048))
    assert (await alice.stream(longest)).metadata == "m" * 2048
    for refused, why in (
        (alice.create("/" + "ä" * 107, StreamTerms()), "214 bytes"),
        (alice.create("/", StreamTerms()), "write the owner's address"),
        (alice.create("/a", StreamTerms("m" * 2049)), "2049 bytes"),
        (alice.create("/a", StreamTerms(trackers=(BOB.address,) * 17)), "16"),
        (alice.create("/a", StreamTerms(partitions=101)), "partitions are 1 to 100"),
        (alice.create("/a", StreamTerms(degree=2)), "a degree is 3 to 64"),
        (alice.grant(longest, [], Permission.EDIT), "1 to 64"),
        (alice.grant(longest, [BOB.address] * 65, Permission.EDIT), "1 to 64"),
        (alice.put_node(Directory.TRACKERS, Contact(BOB.address)), "1 to 4 addresses"),
    ):
        with pytest.raises(UsageError, match=why):
            await refused
    reader = await stage.open(None)
    with pytest.raises(UsageError, match=r"name a keystore as key in \[node\]"):
        await reader.create("/a", StreamTerms())
    assert (await alice.chain.head()).number == before + 1


@on_every_registry
async def test_many_writers_with_one_key_come_one_after_the_other(stage: Stage) -> None:
    one, other = await stage.open(ALICE), await stage.open(ALICE)
    paths = [f"/{n}" for n in range(6)]
    made = await asyncio.gather(
        *(
            (one if place % 2 else other).create(path, StreamTerms(partitions=place + 1))
            for place, path in enumerate(paths)
        )
    )
    reader = await stage.open(None)
    assert [(await reader.stream(stream)).partitions for stream in made] == [1, 2, 3, 4, 5, 6]


@on_every_registry
async def test_what_was_read_across_a_change_is_read_again(stage: Stage) -> None:
    """The answer of before the change comes after the change was seen: it must not be kept."""
    alice, other = await stage.open(ALICE), await stage.open(None, poll_s=60.0)
    stream = await alice.create("/private", StreamTerms())
    await alice.grant(stream, [BOB.address], Permission.PUBLISH)
    await other._follower.poll()
    call, calls = other.chain.call, 0

    async def slow(contract: NodeId, data: bytes, at: Block) -> bytes:
        nonlocal calls
        calls += 1
        answer = await call(contract, data, at)
        if calls == 1:
            await alice.revoke(stream, [BOB.address], Permission.PUBLISH)
            await other._follower.poll()
        return answer

    other.chain.call = slow  # type: ignore[method-assign]
    assert await answer(other, stream, BOB.address, Permission.PUBLISH) is Answer.NO
    assert calls == 2


@on_every_registry
async def test_a_change_whose_answer_was_lost_is_sent_again_and_happens_once(stage: Stage) -> None:
    """A second transaction in its place would be refused: there is such a stream by then."""
    alice = await stage.open(ALICE)
    send, sent = alice.chain.send, list[bytes]()

    async def unheard(signed: Signed) -> None:
        sent.append(signed.raw)
        await send(signed)
        if len(sent) == 1:
            raise RegistryUnavailable("nobody heard the answer")

    alice.chain.send = unheard  # type: ignore[method-assign]
    stream = await alice.create("/once", StreamTerms())
    assert await alice.stream(stream) == StreamTerms()
    assert sent[0] == sent[1]
