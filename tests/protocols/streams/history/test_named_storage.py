"""Trackers that do not answer, and settings that name the storage nodes."""

from __future__ import annotations

from shoal.base.units import MS_NS, S_NS
from shoal.protocols.streams.commands import NO_TRACKER, KeepDurably, KeptDurably, MessageRange
from shoal.protocols.streams.config import ClientConfig
from tests.support.history import ONE, TWO, Keeper, Library, history
from tests.support.streams import OTHER_STREAM, STREAM

CONFIG = ClientConfig()
MESSAGES = history(3)


def silent(*named: bytes) -> Library:
    library = Library(Keeper(MESSAGES), Keeper(MESSAGES), named=named)  # type: ignore[arg-type]
    library.tracker_answers = False
    return library


def test_a_silent_tracker_is_waited_for_for_a_second() -> None:
    library = silent(ONE, TWO)
    library.read(MessageRange())
    library.advance(CONFIG.named_after_ns - 100 * MS_NS)
    assert library.rows == []
    library.advance(200 * MS_NS)
    assert library.rows == MESSAGES
    assert library.ended[0].complete


def test_other_streams_of_a_silent_tracker_do_not_wait() -> None:
    library = silent(ONE)
    library.read_all(MessageRange())
    for token, stream in (("keep", OTHER_STREAM), ("again", STREAM)):
        kept = history(1, stream=stream)[0]
        library.command(KeepDurably(stream, kept), token)
        assert library.host.notified[-1] == KeptDurably(token, 1)


def test_a_tracker_that_is_back_is_asked_and_believed() -> None:
    library = silent(ONE)
    library.read_all(MessageRange())
    library.tracker_answers = True
    library.storage = (TWO,)
    library.advance(CONFIG.named_ns)
    library.read_all(MessageRange(), token="other")  # the tracker is asked meanwhile
    library.advance(1 * S_NS)
    library.keepers[ONE] = None  # it is not asked any more
    library.read_all(MessageRange(), token="last")
    assert len(library.rows) == 3 * len(MESSAGES)
    assert all(ended.complete for ended in library.ended)


def test_a_tracker_that_answers_counts_more_than_the_settings() -> None:
    library = Library(Keeper(MESSAGES), None, named=(TWO,))
    library.storage = (ONE,)
    assert library.read_all(MessageRange()) == MESSAGES


def test_a_tracker_that_knows_of_nobody_does_not_say_that_nobody_keeps_it() -> None:
    """What a publisher wants to have kept would be let go of."""
    library = Library(Keeper(MESSAGES), named=(ONE,))
    library.storage = ()
    assert library.read_all(MessageRange()) == MESSAGES
    library.command(KeepDurably(STREAM, history(4)[-1]), "keep")
    assert library.host.notified[-1] == KeptDurably("keep", 1)


def test_a_tracker_that_cannot_be_reached_is_not_needed() -> None:
    library = silent(ONE)
    library.tracker_is_up = False
    assert library.read_all(MessageRange()) == MESSAGES


def test_without_names_there_is_no_tracker() -> None:
    library = silent()
    library.read_all(MessageRange())
    assert [ended.reason for ended in library.ended] == [NO_TRACKER]
