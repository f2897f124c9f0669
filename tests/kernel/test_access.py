"""Asking who may do what, as every driver does it."""

from __future__ import annotations

from shoal.base.ids import StreamId
from shoal.kernel.access import Permission, Verdict
from shoal.kernel.effects import CheckAccess
from shoal.kernel.fake_host import FakeHost
from shoal.kernel.inputs import AccessChanged, AccessChecked
from tests.support.machines import Echo, Note, Scripted, peer_id

ME, PEER = peer_id(1), peer_id(2)
STREAM = StreamId("city/vehicles")


def test_a_question_is_answered_to_the_machine_that_asked() -> None:
    asking, other = Scripted((Note,)), Scripted((Echo,))
    host = FakeHost(ME, [other, asking])
    host.access.verdicts[STREAM, PEER] = verdict = Verdict(Permission.SUBSCRIBE, 5)
    host.command(asking, [CheckAccess(STREAM, PEER)])
    host.finish_all()
    assert asking.heard() == [AccessChecked(STREAM, PEER, verdict)]
    assert other.heard() == []


def test_changes_are_told_to_those_who_asked() -> None:
    asking, other = Scripted((Note,)), Scripted((Echo,))
    host = FakeHost(ME, [other, asking])
    host.access_changed(AccessChanged(STREAM))
    host.command(asking, [CheckAccess(STREAM, PEER)])
    host.access_changed(AccessChanged())
    assert asking.heard() == [AccessChanged()], "and not of what was before it asked"
    assert other.heard() == []


def test_a_verdict_allows_any_of_the_kinds() -> None:
    verdict = Verdict(Permission.PUBLISH, 0)
    assert verdict.allows(Permission.PUBLISH | Permission.SUBSCRIBE)
    assert not verdict.allows(Permission.SUBSCRIBE)
