"""The timers of an overlay, by their keys: each does what it was set for."""

from __future__ import annotations

from shoal.kernel.effects import CloseLink, OpenLink, SetTimer
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.member.neighbours import Overlay
from shoal.protocols.streams.messages import Open, Status
from tests.support.streams import (
    ALICE,
    BOB,
    ME,
    NOW_NS,
    STREAM,
    TRACKER,
    contact,
    instruction,
    of_kind,
    sent,
)

CONFIG = NodeConfig()


def dialled() -> Overlay:
    overlay = Overlay(STREAM, ME, CONFIG)
    overlay.tracker = TRACKER
    overlay.instruct(instruction(1, ALICE, BOB), NOW_NS)
    return overlay


def test_whoever_is_silent_is_asked_to_open_again() -> None:
    overlay = dialled()
    overlay.link_opened(ALICE)
    assert sent(overlay.timer(("open-retry", STREAM), NOW_NS)) == [(Open(STREAM, False), (ALICE,))]


def test_links_that_take_too_long_are_given_up_and_tried_again_later() -> None:
    overlay = dialled()
    overlay.link_opened(ALICE)
    overlay.peer_opened(ALICE, Open(STREAM, True), NOW_NS)
    late_ns = NOW_NS + CONFIG.open_timeout_ns
    effects = overlay.timer(("open-timeout", STREAM), late_ns)
    assert sent(effects, Status) == [(Status(STREAM, 1, 1, (ALICE,)), (TRACKER,))]
    assert SetTimer(("retry", STREAM), CONFIG.retry_ns) in effects
    effects = overlay.timer(("retry", STREAM), late_ns + CONFIG.retry_ns)
    assert of_kind(effects, OpenLink) == [OpenLink(contact(BOB), STREAM)]


def test_whoever_does_not_say_close_is_let_go() -> None:
    overlay = dialled()
    for peer in (ALICE, BOB):
        overlay.link_opened(peer)
        overlay.peer_opened(peer, Open(STREAM, True), NOW_NS)
    overlay.instruct(instruction(2, ALICE), NOW_NS)
    assert overlay.heard() == {ALICE, BOB}
    effects = overlay.timer(("closing", STREAM, BOB), NOW_NS + CONFIG.close_timeout_ns)
    assert of_kind(effects, CloseLink) == [CloseLink(BOB, STREAM)]
    assert overlay.heard() == {ALICE}
