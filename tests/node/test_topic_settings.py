"""What an author may say of a topic, and how an application names things."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shoal.base.errors import UsageError
from shoal.identity import show_peer_id
from shoal.identity.topics.cid import show_cid
from shoal.identity.topics.descriptors import ALL_REQUESTS, PeerList
from shoal.node import ANYONE, CUSTOM, LAST_SEEN, NOBODY, Event
from shoal.node.topics.topic import TopicSettings, cid_of_any, create_topic, start_of
from shoal.protocols.topics.commands import BEGINNING, LIVE
from tests.support.topics import ALICE, META_CID, TOPIC_CID, event_of, peer

ALICE_ID = show_peer_id(ALICE.public.peer_id)


def settings(**given: Any) -> TopicSettings:
    defaults = {"publishers": None, "requests": ANYONE, "linking": LAST_SEEN, "sub_topics": None}
    return TopicSettings(**{**defaults, **given})


def test_who_may_publish_and_who_may_ask() -> None:
    plain = settings()
    assert plain.publishers is None, "the author, whoever that is"
    assert plain.requests == ALL_REQUESTS
    named = settings(publishers=[ALICE_ID], requests=[peer(ALICE)], linking=CUSTOM)
    assert named.publishers == named.requests == PeerList(True, (peer(ALICE),))
    assert named.linking is CUSTOM
    assert settings(publishers=ANYONE).publishers == PeerList(False)
    assert settings(requests=NOBODY).requests == PeerList(False)


def test_sub_topics_are_named_by_cid_or_topic() -> None:
    found = settings(sub_topics={"a": show_cid(TOPIC_CID), "b": META_CID}).sub_topics
    assert found == (("a", TOPIC_CID), ("b", META_CID))


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"publishers": "16Uiu2"}, "publishers='16Uiu2': give shoal.ANYONE, or a list of peer ids"),
        ({"publishers": NOBODY}, "give shoal.ANYONE, or a list of peer ids"),
        ({"publishers": ["16Uiu2"]}, "'16Uiu2' is not a secp256k1 peer id"),
        ({"publishers": [b"short"]}, "is no peer id"),
        ({"publishers": []}, "nobody could publish: leave it out for the author alone"),
        ({"requests": []}, "give shoal.NOBODY, or peers"),
        ({"linking": "LAST_SEEN"}, "give shoal.LAST_SEEN or shoal.CUSTOM"),
        ({"sub_topics": {"meta": TOPIC_CID}}, "'meta' is made with the topic"),
        ({"sub_topics": {"x": 7}}, "sub_topics=7: give a CID"),
        ({"sub_topics": {5: TOPIC_CID}}, "sub_topics: 5 is no name: give some text"),
        ({"sub_topics": [TOPIC_CID]}, "give a dict, of names and CIDs or topics"),
    ],
)
def test_what_cannot_be_is_named_with_a_remedy(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings(**given)
    assert complaint in str(caught.value)


@pytest.mark.parametrize("name", ["", None])
def test_a_topic_has_a_name(name: Any) -> None:
    with pytest.raises(UsageError, match="give it some text"):
        asyncio.run(create_topic(None, name, settings()))  # type: ignore[arg-type]


def test_a_name_leaves_room_for_the_meta_topics() -> None:
    with pytest.raises(
        UsageError, match=r"a topic's name has at most 1019 bytes, 'x{40}'\.\.\. has"
    ):
        asyncio.run(create_topic(None, 1020 * "x", settings()))  # type: ignore[arg-type]


def test_a_cid_may_be_text_bytes_or_an_event() -> None:
    event = Event(META_CID, event_of(ALICE))
    for given in (show_cid(META_CID), META_CID, bytes(META_CID), event):
        assert cid_of_any("cid", given) == META_CID
        assert start_of(given) == META_CID
    assert (start_of("latest"), start_of("earliest")) == (LIVE, BEGINNING)
    with pytest.raises(UsageError, match="start='now': give 'latest', 'earliest', or the check"):
        start_of("now")
    for wrong in (b"short", 7, None):
        with pytest.raises(UsageError, match=r"cid=.*: give a CID, zdpu"):
            cid_of_any("cid", wrong)  # type: ignore[arg-type]


def test_events_are_equal_if_their_cids_are() -> None:
    one, same = Event(META_CID, event_of(ALICE)), Event(META_CID, event_of(ALICE), gap_before=True)
    other = Event(TOPIC_CID, event_of(ALICE))
    assert one == same
    assert len({one, same, other}) == 2
    assert one != "zdpu"
    assert repr(one) == f"Event({show_cid(META_CID)!r})"
