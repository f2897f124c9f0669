"""Two sessions of one key: the newer one keeps the links and goes on, the older one is told, as
soon as somebody is linked with both. Nobody else can make a node believe that."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from shoal.base.errors import SessionReplaced
from shoal.base.units import MS_NS, seconds
from shoal.identity import PrivateKey, SeededEntropy
from shoal.identity.session_record import (
    NO_SESSION,
    SessionRecord,
    begin_session,
    decode_session,
    encode_session,
)
from shoal.kernel.effects import CloseLink
from shoal.kernel.records import LinkDown
from shoal.runtime import host as module
from tests.runtime.world import PURPOSE, Inhabitant, World, perform, reasons
from tests.transport.recorder import until

SEEDS = range(20)


def replaced(inhabitant: Inhabitant) -> bool:
    return inhabitant.host.newer_session is not None


async def linked(one: Inhabitant, peer: Inhabitant) -> None:
    one.claim(peer)
    await until(lambda: peer.id in one.host.connections)


async def settle() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


def session_at(peer: Inhabitant, other: Inhabitant) -> SessionRecord:
    return peer.host.connections[other.id].peer.session


def test_the_older_of_two_copies_is_told_by_a_peer_that_both_dial() -> None:
    async def scenario(world: World) -> None:
        tracker = await world.enter("tracker", session_ms=1)
        older = await world.enter("alice", session_ms=1000)
        newer = await world.enter("alice", session_ms=2000)
        told: list[SessionRecord] = []
        older.host.on_replaced.append(told.append)
        await linked(older, tracker)
        await settle()
        assert not replaced(older)
        await linked(newer, tracker)
        await until(lambda: replaced(older))
        assert told == [newer.credentials.session]
        with pytest.raises(SessionReplaced, match=r"runs elsewhere.*shoal key new"):
            older.host.demand_session()
        newer.host.demand_session()
        assert session_at(tracker, newer) == newer.credentials.session
        assert reasons(tracker) == ["older-session"]
        # It dials again and again; the newer one keeps its link all the while.
        for _ in range(3):
            older.claim(tracker, "again")
            await settle()
        assert session_at(tracker, newer) == newer.credentials.session
        assert not newer.recorded(LinkDown)
        assert len(told) == 1

    perform(scenario)


def test_the_older_one_is_told_also_if_it_dials_later(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        tracker = await world.enter("tracker", session_ms=1)
        newer = await world.enter("alice", session_ms=2000)
        older = await world.enter("alice", session_ms=1000)
        await linked(newer, tracker)
        for _ in range(3):  # first the newer one has to say that it is alive
            older.claim(tracker)
            await settle()
            await asyncio.sleep(seconds(200 * MS_NS))
            if replaced(older):
                break
        assert replaced(older)
        assert not replaced(newer)
        assert not newer.recorded(LinkDown)

    perform(scenario)
    assert "an older session of" in caplog.text


def test_a_dead_session_with_a_higher_number_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock was ahead, and its machine lost power: the peer's link to it lingers."""

    async def scenario(world: World) -> None:
        tracker = await world.enter("tracker", session_ms=1)
        dead = await world.enter("alice", session_ms=9000)
        later = await world.enter("alice", session_ms=1000)
        await linked(dead, tracker)
        dead.host.frames_received = lambda link, frames: None  # type: ignore[method-assign]
        for _ in range(4):
            later.claim(tracker)
            await settle()
            await asyncio.sleep(seconds(100 * MS_NS))
        assert not replaced(later)
        tracker.host.drop_link(dead.id, "idle")
        later.claim(tracker)
        await until(lambda: later.id in tracker.host.connections)
        later.host.demand_session()

    perform(scenario)


def test_a_restart_and_a_reconnect_are_no_twins() -> None:
    async def scenario(world: World) -> None:
        tracker = await world.enter("tracker", session_ms=1)
        first = await world.enter("alice", session_ms=1000)
        await linked(first, tracker)
        first.do(CloseLink(tracker.id, PURPOSE))
        first.host.drop_link(tracker.id, "test")
        await settle()
        await linked(first, tracker)
        await settle()
        assert not replaced(first)
        await first.host.stop()
        second = await world.enter("alice", session_ms=1001)
        await linked(second, tracker)
        await settle()
        assert not replaced(second)
        assert session_at(tracker, second) == second.credentials.session
        assert reasons(tracker) == []

    perform(scenario)


def test_two_links_of_one_session_are_no_twins() -> None:
    async def scenario(world: World) -> None:
        alice = await world.enter("alice", session_ms=1000)
        bob = await world.enter("bob", session_ms=1000)
        alice.claim(bob)
        bob.claim(alice)
        await until(lambda: bob.id in alice.host.connections and alice.id in bob.host.connections)
        await asyncio.sleep(0.1)
        for one in (alice, bob):
            assert not replaced(one)
            assert reasons(one) == []

    perform(scenario)


def test_links_of_two_sessions_are_never_used_as_one() -> None:
    """We dialled the older one just now; a newer one dials us: not a simultaneous dial."""

    async def scenario(world: World) -> None:
        tracker = await world.enter("tracker", session_ms=1)
        older = await world.enter("alice", session_ms=1000)
        newer = await world.enter("alice", session_ms=2000)
        await linked(tracker, older)
        await linked(newer, tracker)
        await until(lambda: replaced(older))
        await until(lambda: session_at(tracker, newer) == newer.credentials.session)
        newer.send(tracker, 7)
        await until(lambda: tracker.machine.notes() == [7])

    perform(scenario)


@pytest.mark.parametrize("what", ["old", "stranger", "unsigned", "junk", "other key"])
def test_records_that_prove_nothing_stop_nobody(what: str) -> None:
    alice_key = PrivateKey.generate(SeededEntropy("alice"))
    mallory_key = PrivateKey.generate(SeededEntropy("mallory"))
    entropy = SeededEntropy("records")
    newer = begin_session(alice_key, entropy, 5000)
    payload = {
        "old": encode_session(begin_session(alice_key, entropy, 500)),
        "stranger": encode_session(begin_session(mallory_key, entropy, 5000)),
        "unsigned": encode_session(SessionRecord(newer.number)),
        "junk": b"junk",
        "other key": encode_session(
            SessionRecord(newer.number, begin_session(mallory_key, entropy, 5000).signature)
        ),
    }[what]

    async def scenario(world: World) -> None:
        alice = await world.enter("alice", session_ms=1000)
        mallory = await world.enter("mallory", session_ms=1000)
        await linked(mallory, alice)
        link = mallory.host.connections[alice.id]
        for _ in range(module.MALFORMED_MAX + 4):
            link.send(module.SESSIONS, payload)
        await asyncio.sleep(0.05)
        assert not replaced(alice)
        assert (alice.id in mallory.host.connections) == (what == "old")

    perform(scenario)


def test_a_peer_without_sessions_is_linked_as_before() -> None:
    async def scenario(world: World) -> None:
        old_peer = await world.enter("tracker")
        older = await world.enter("alice", session_ms=1000)
        await linked(older, old_peer)
        older.send(old_peer, 1)
        await until(lambda: old_peer.machine.notes() == [1])
        assert older.host.connections[old_peer.id].peer.session == NO_SESSION
        assert decode_session(encode_session(older.credentials.session)).is_signed_by(older.id)

    perform(scenario)


@pytest.mark.parametrize("seed", SEEDS)
def test_after_any_story_only_the_newest_live_session_goes_on(seed: int) -> None:
    """Copies of one node start, dial, are dialled, lose links and stop, in any order. A session is
    told only if a newer one was alive when it had run; of those that are linked with one peer in
    the end, all but the newest know."""
    print(f"seed {seed}")
    rng = Random(seed)

    async def scenario(world: World) -> None:
        peers = [await world.enter(f"peer {number}", session_ms=1) for number in range(2)]
        alive: list[Inhabitant] = []
        began = 1000
        for _ in range(25):
            action = rng.choice(["start", "dial", "dial", "dial", "called", "cut", "stop"])
            peer = rng.choice(peers)
            if action == "start" and len(alive) < 3:
                began += rng.randrange(1, 1000)
                alive.append(await world.enter("alice", session_ms=began))
            elif not alive:
                continue
            one = rng.choice(alive)
            if action == "dial":
                one.claim(peer)
            elif action == "called":
                peer.claim(one)
            elif action == "cut" and peer.id in one.host.connections:
                one.host.drop_link(peer.id, "cut")
            elif action == "stop" and len(alive) > 1:
                alive.remove(one)
                await one.host.stop()
            await settle()
            for each in alive:
                newer, number = each.host.newer_session, each.credentials.session.number
                assert newer is None or newer.number > number
                assert newer is None or number < began << 20, "the newest of all is never told"
        for _ in range(4):
            for each in alive:
                each.claim(peers[0])
            await asyncio.sleep(0.04)
        newest = max(alive, key=lambda each: each.credentials.session.number, default=None)
        for each in alive:
            assert replaced(each) or each is newest

    perform(scenario)
