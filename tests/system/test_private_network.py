"""One private, encrypted stream among twelve nodes, over real processes and a chain of its own:
who gets what, who is refused what, and what becomes of it while the chain is away."""

from __future__ import annotations

import signal
import time

import pytest

from shoal.base.errors import RegistryUnavailable
from shoal.base.ids import KEYS_PARTITION, parse_node_id, show_node_id
from shoal.identity import PrivateKey, SeededEntropy, SystemEntropy, show_peer_id
from shoal.identity.message_body import ENCRYPTED, decode_body
from shoal.kernel.access import Permission
from shoal.storage.message_store.store import Store
from tests.cli.test_app import ends
from tests.registry.stage import ALICE
from tests.system.private_town import Town, private_town

STALENESS_S = 5.0
SENT = 5
LATE = PrivateKey.generate(SeededEntropy("late"))
OUTSIDER, NEWCOMER = 0, 1  # among the guests


def test_a_private_stream_among_twelve_nodes() -> None:
    with private_town(STALENESS_S) as town:
        permit_late_subscriber(town)
        for publisher in (*town.members, *town.members):
            town.publish(publisher)
        town.await_all(*town.members)
        kinds = {kind for kinds in town.called.ask("carriers") for kind in kinds}
        assert kinds == {"DialledCarrier", "WebRTCCarrier"}
        assert town.guests.ask("open", said=[town.file("ws"), town.file("ws")]) == [None, None]
        check_outsider(town)
        check_outage(town)
        check_revoked_subscriber(town)
        check_revoked_publisher(town)
        check_late_subscriber(town)
        town.keeper.hang_up()
        assert town.keeper.end() == 0
        check_stored(town)


def permit_late_subscriber(town: Town) -> None:
    """By its peer id, as people do it; it is not online before the end."""
    config = town.file("ws", town.key_file("owner.key", ALICE))
    peer_id = show_peer_id(LATE.public.peer_id)
    granted = ("stream", "grant", "/private", "subscribe", peer_id, "--config", config)
    assert ends(*granted) == 0


def check_outsider(town: Town) -> None:
    """It is refused by its own registry; if it does not ask that, by everybody else."""
    guests, stream = town.guests, town.stream
    for command in ("subscribe", "send"):
        refused = guests.ask_one(command, stream, "mine", which=OUTSIDER)
        assert "`shoal stream grant" in refused["NotPermitted"]
    guests.ask_one("stubborn", which=OUTSIDER)
    for command in ("subscribe", "send"):
        refused = guests.ask_one(command, stream, "mine", which=OUTSIDER)
        assert "may not subscribe" in refused["NotPermitted"]
    refused = guests.ask_one("read", stream, which=OUTSIDER)
    assert "no-permission" in refused["HistoryUnavailable"]
    linked = guests.ask_one("linked", which=OUTSIDER)
    keepers = sorted(name for name, *_ in town.keeper.ask("who"))
    assert linked == keepers, "tracker and storage node, which it asked; no member of the stream"
    # Whoever finds out where a member is may dial it, and is nobody's neighbour by that.
    member, _, addresses = town.dialled.ask("who")[-1]
    (known,) = town.publish(town.first)
    guests.ask_one("knock", stream, (member, addresses, known), which=OUTSIDER)
    town.until(
        lambda: "not-a-neighbour" in town.dialled.ask_one("refused", which=-1), "it is let in"
    )
    town.publish(town.first)
    town.await_all(*town.members)
    assert guests.ask_one("taken", which=OUTSIDER) == {}
    assert "not-my-stream" not in guests.ask_one("refused", which=OUTSIDER), "it was sent a message"


def check_outage(town: Town) -> None:
    """The stream goes on for as long as what is known counts. Newcomers, changes, and in the end
    publishers are refused, and told why; afterwards all of that works, and nothing is lost."""
    stream, first, guests = town.stream, town.first, town.guests
    newcomer = parse_node_id(guests.ask("who")[NEWCOMER][0])
    town.do(town.owner.grant(stream, [newcomer], Permission.SUBSCRIBE))
    town.settle(town.keeper, *town.members)
    town.stage.anvil.freeze()
    for publisher in town.members:
        town.publish(publisher)
    town.await_all(*town.members)
    with pytest.raises(RegistryUnavailable, match=r'nothing was changed.*outage_writes = "refuse"'):
        town.do(town.owner.revoke(stream, [newcomer], Permission.SUBSCRIBE))
    refused = guests.ask_one("subscribe", stream, which=NEWCOMER)
    assert "no answer within 1 s" in refused["RegistryUnavailable"]
    (refused,) = guests.ask("open", said=[town.file("ws")])
    assert "no answer within 1 s" in refused["RegistryUnavailable"]
    said = town.published[show_node_id(town.ids[first][0])]
    refusal: dict[str, str] = {}

    def is_refused() -> bool:
        content = {"number": len(said)}
        answer = first.ask_one("send", stream, content)
        if isinstance(answer, dict):
            refusal.update(answer)
        else:
            said.append(content)
        return bool(refusal)

    town.until(is_refused, "what is known never became too old")
    assert f"counts for {STALENESS_S:g} s" in refusal["RegistryUnavailable"]
    town.stage.anvil.thaw()
    town.until(lambda: not is_still_refused(town), "the chain came back, and nobody noticed")
    town.await_all(*town.members)
    town.do(town.owner.revoke(stream, [newcomer], Permission.SUBSCRIBE))


def is_still_refused(town: Town) -> bool:
    return isinstance(town.guests.ask_one("subscribe", town.stream, which=NEWCOMER), dict)


def check_revoked_subscriber(town: Town) -> None:
    """It may still publish, so it has its place in the overlay, and every byte of the stream; but
    not the key. Whoever may do nothing any more is out."""
    stream, revoked = town.stream, town.dialled
    id = town.ids[revoked][0]
    before = revoked.ask_one("readable", stream)
    assert len(before) == sum(map(len, town.published.values()))
    town.do(town.owner.revoke(stream, [id], Permission.SUBSCRIBE))
    town.settle(town.keeper, *town.members)
    after = town.publish(town.first, SENT, durable=True) + town.publish(town.called, SENT)
    town.await_all(*town.members, but=[id])
    town.until(lambda: set(after) <= set(revoked.ask_one("taken")), "it is in the overlay")
    assert sorted(revoked.ask_one("readable", stream)) == sorted(before)
    revoked.ask_one("stubborn")
    refused = revoked.ask_one("read", stream)
    assert "no-permission" in refused["HistoryUnavailable"]
    town.do(town.owner.revoke(stream, [id], Permission.PUBLISH))
    town.until(lambda: bool(revoked.ask_one("ended")), "it is still in")
    assert "may not subscribe" in revoked.ask_one("ended")["NotPermitted"]
    assert not set(after) & set(revoked.ask_one("readable", stream))


def check_revoked_publisher(town: Town) -> None:
    """What it sends stops at its neighbours: nobody takes it, and what nobody takes nobody passes
    on. Until they have heard of it they believe it; no longer than the bound."""
    stream, revoked = town.stream, town.called
    id = town.ids[revoked][0]
    others = {process: process.ask("who") for process in (town.keeper, *town.members)}
    revoked.ask_one("stubborn")
    town.do(town.owner.revoke(stream, [id], Permission.PUBLISH))
    revoked_ms = time.time_ns() // 1_000_000
    early = [revoked.ask_one("send", stream, "early") for _ in range(SENT)]
    town.settle(*others)
    time.sleep(0.5)  # for what was passed on by those who had not heard of it
    before = refusals(town)
    neighbours = set(revoked.ask_one("neighbours", stream))
    late = [revoked.ask_one("send", stream, "late") for _ in range(SENT)]
    assert all(isinstance(message, str) for message in late)
    town.until(lambda: sum(more(before, refusals(town)).values()) >= SENT, "nobody refused")
    time.sleep(0.5)  # for what should not be under way
    refusing = {name for name, count in more(before, refusals(town)).items() if count}
    neighbours |= set(revoked.ask_one("neighbours", stream))
    assert refusing <= neighbours, "it went a second hop"
    for process in others:
        for taken in process.ask("taken"):
            assert not set(late) & set(taken)
            believed_ms = [at_ms for message, at_ms in taken.items() if message in early]
            assert max(believed_ms, default=0) <= revoked_ms + STALENESS_S * 1000


def refusals(town: Town) -> dict[str, int]:
    """How many messages each node refused for want of a permission."""
    return {
        who[0]: refused.get("no-permission", 0)
        for process in (town.keeper, *town.members)
        for who, refused in zip(process.ask("who"), process.ask("refused"), strict=True)
    }


def more(before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    return {name: count - before.get(name, 0) for name, count in now.items()}


def check_late_subscriber(town: Town) -> None:
    """It was never online, and the publisher is gone: the storage node has no key, and it reads."""
    town.publish(town.first, durable=True)
    town.first.end(signal.SIGKILL)
    key = town.key_file("late.key", LATE)
    assert town.guests.ask("open", said=[town.file("ws", key)]) == [None]
    rows = town.guests.ask_one("read", town.stream, which=-1)
    gone = show_node_id(town.ids[town.first][0])
    read = [(content, wrong) for publisher, content, wrong in rows if publisher == gone]
    assert read == [(content, None) for content in town.published[gone]]


def check_stored(town: Town) -> None:
    """The storage node has nothing that it could read."""
    with Store(town.stage.folder / "store", SystemEntropy()) as store:
        bodies = {
            partition: [
                decode_body(row.signed)
                for page in store.range(town.stream, partition)
                for row in page
            ]
            for partition in (0, KEYS_PARTITION)
        }
    assert {body.content_type for body in bodies[0]} == {ENCRYPTED}
    contents = [body.content for some in bodies.values() for body in some]
    assert not [content for content in contents if b"number" in content]
