"""A node's side of one overlay: the life of a neighbour, state by state.

The table below is the contract: what each event does to a neighbour in each state, what is said to
it, and what becomes of the link.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shoal.kernel.effects import CloseLink, OpenLink
from tests.support.overlay_desk import (
    ANSWER,
    CLOSE,
    CLOSE_ANSWER,
    OPEN,
    Desk,
    absent,
    active,
    closing,
    dialling,
    dialling_opened,
    down,
    kept,
    opening,
    statuses,
)
from tests.support.streams import ALICE, BOB, STREAM, contact, sent

STATES = {
    "absent": absent,
    "dialling": dialling,
    "dialling-opened": dialling_opened,
    "opening": opening,
    "active": active,
    "kept": kept,
    "closing": closing,
    "down": down,
}
EVENTS: dict[str, Callable[[Desk], object]] = {
    "wanted": lambda desk: desk.instruct(ALICE, *([BOB] if BOB in desk.overlay.neighbours else [])),
    "unwanted": lambda desk: desk.instruct(),
    "link up": Desk.link_up,
    "link lost": Desk.link_lost,
    "Open": lambda desk: desk.open(answered=False),
    "Open answered": lambda desk: desk.open(answered=True),
    "Close": lambda desk: desk.close(answer=False),
    "Close answer": lambda desk: desk.close(answer=True),
    "open timeout": Desk.open_timeout,
    "closing timeout": Desk.closing_timeout,
    "retry": Desk.retry,
    "drop": Desk.drop,
}

# state, event: next state, what Alice is told, what is done with the link, statuses.
# Where nothing is written for a pair, nothing happens.
TABLE: dict[tuple[str, str], tuple[str, list[object], str, int]] = {
    ("absent", "wanted"): ("dialling", [], "claim", 0),
    ("absent", "unwanted"): ("absent", [], "", 1),
    ("absent", "link up"): ("absent", [], "release", 0),
    ("dialling", "unwanted"): ("absent", [], "release", 1),
    ("dialling", "link up"): ("opening", [OPEN], "", 0),
    ("dialling", "link lost"): ("down", [], "", 1),
    ("dialling", "Open"): ("dialling-opened", [], "", 0),
    ("dialling", "Open answered"): ("dialling-opened", [], "", 0),
    ("dialling", "open timeout"): ("down", [], "release", 1),
    ("dialling", "drop"): ("down", [CLOSE], "release", 1),
    ("dialling-opened", "unwanted"): ("absent", [], "release", 1),
    ("dialling-opened", "link up"): ("active", [ANSWER], "", 1),
    ("dialling-opened", "link lost"): ("down", [], "", 1),
    ("dialling-opened", "Close"): ("dialling", [], "", 0),
    ("dialling-opened", "open timeout"): ("down", [], "release", 1),
    ("dialling-opened", "drop"): ("down", [CLOSE], "release", 1),
    ("opening", "unwanted"): ("closing", [CLOSE], "", 1),
    ("opening", "link lost"): ("down", [], "", 1),
    ("opening", "Open"): ("active", [ANSWER], "", 1),
    ("opening", "Open answered"): ("active", [], "", 1),
    ("opening", "Close"): ("down", [CLOSE_ANSWER], "release", 1),
    ("opening", "open timeout"): ("down", [], "release", 1),
    ("opening", "drop"): ("down", [CLOSE], "release", 1),
    ("active", "wanted"): ("active", [], "", 1),
    ("active", "unwanted"): ("closing", [CLOSE], "", 1),
    ("active", "link lost"): ("down", [], "", 0),
    ("active", "Open"): ("active", [ANSWER], "", 0),
    ("active", "Close"): ("down", [CLOSE_ANSWER], "release", 0),
    ("active", "drop"): ("down", [CLOSE], "release", 0),
    ("kept", "wanted"): ("active", [], "", 0),
    ("kept", "unwanted"): ("closing", [CLOSE], "", 1),
    ("kept", "link lost"): ("absent", [], "", 0),
    ("kept", "Open"): ("kept", [ANSWER], "", 0),
    ("kept", "Close"): ("absent", [CLOSE_ANSWER], "release", 0),
    ("kept", "open timeout"): ("closing", [CLOSE], "", 1),
    ("kept", "drop"): ("absent", [CLOSE], "release", 0),
    ("closing", "wanted"): ("dialling", [], "claim", 0),
    ("closing", "unwanted"): ("closing", [], "", 1),
    ("closing", "link lost"): ("absent", [], "", 0),
    ("closing", "Close"): ("absent", [], "release", 0),
    ("closing", "Close answer"): ("absent", [], "release", 0),
    ("closing", "closing timeout"): ("absent", [], "release", 0),
    ("closing", "drop"): ("absent", [CLOSE], "release", 0),
    ("down", "wanted"): ("dialling", [], "claim", 0),
    ("down", "unwanted"): ("absent", [], "", 1),
    ("down", "Open"): ("dialling-opened", [], "claim", 0),
    ("down", "Open answered"): ("dialling-opened", [], "claim", 0),
    ("down", "retry"): ("dialling", [], "claim", 0),
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", STATES)
def test_the_life_of_a_neighbour(state: str, event: str) -> None:
    desk = STATES[state]()
    assert desk.state() == state
    EVENTS[event](desk)
    links = {OpenLink(contact(ALICE), STREAM): "claim", CloseLink(ALICE, STREAM): "release"}
    done = (
        desk.state(),
        [message for message, peers in sent(desk.last) if ALICE in peers],
        "".join(links[e] for e in desk.last if isinstance(e, OpenLink | CloseLink) and e in links),
        len(statuses(desk.last)),
    )
    assert done == TABLE.get((state, event), (state, [], "", 0))
