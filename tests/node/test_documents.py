"""Documents that are put: their lives, their deletions, and their names."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from shoal.base.errors import ClockWrong, NotFound, UsageError
from shoal.base.ids import show_node_id
from shoal.node.search import documents
from shoal.node.search.client import Token
from shoal.node.search.documents import NodeDocuments, split_address
from shoal.protocols.search.commands import (
    DocumentPut,
    FindDocuments,
    Found,
    PutDocument,
    SearchOver,
)
from shoal.protocols.search.documents.document import LIFE_NS_MAX, Document, Life, document_id
from shoal.protocols.search.spaces import DocumentSpace
from tests.node.search import ALICE, BOB, DAY_MS, Door, document

HOUR_NS = 3600 * 10**9
OWNER = show_node_id(ALICE.address)


class Clock:
    """Whether it can be believed."""

    def __init__(self) -> None:
        self.wrong = False
        self.checks = 0

    async def check(self) -> None:
        self.checks += 1
        if self.wrong:
            raise ClockWrong("600 s ahead")


class Machine(Door):
    """Answers at once: documents are put, and those that it holds are found."""

    def __init__(self, *held: Document) -> None:
        super().__init__()
        self.held = held
        self.work: list[Any] = []

    async def say(self, command: Any, token: Token | None = None) -> None:
        await super().say(command, token)
        assert token is not None
        if isinstance(command, PutDocument):
            life = command.life
            made = document(command.name, life=life, deleted=command.content is None, version=5)
            token.heard(DocumentPut(made, 12, token))
        elif isinstance(command, FindDocuments):
            for one in self.held:
                if one.id == command.id:
                    token.heard(Found(one, 0.0, token))
            token.heard(SearchOver(0.992, 9, 20.0, token))

    def start(self, work: Any) -> Any:
        self.work.append(work)
        work.close()

    @property
    def commands(self) -> list[Any]:
        return [command for command, _ in self.said]


def ours(machine: Machine) -> NodeDocuments:
    return NodeDocuments(machine, DocumentSpace(), "*")


async def put(
    machine: Machine, life: Life = "managed", name: str | None = "x", lasts: Any = None
) -> Any:
    return await ours(machine).put({"a": 1}, life, name, lasts, "document")


def test_a_document_that_was_put_says_what_it_is() -> None:
    async def main() -> None:
        machine = Machine()
        made = await put(machine)
        assert (made.name, made.version, made.nodes, made.owner) == ("x", 5, 12, OWNER)
        assert made.id == document_id(ALICE.address, "x")
        assert made.address == f"{OWNER}/x"
        first, second = await put(machine, name=None), await put(machine, name=None)
        assert first.name != second.name, "one without a name gets one"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("life", "lasts", "life_ns"),
    [
        ("instant", None, 60 * 10**9),
        ("fading", None, HOUR_NS),
        ("managed", None, 24 * HOUR_NS),
        ("durable", None, 30 * 24 * HOUR_NS),
        ("fading", timedelta(minutes=5), 300 * 10**9),
        ("durable", 90.5, 90_500_000_000),
    ],
)
def test_how_long_a_document_lives(life: Life, lasts: Any, life_ns: int) -> None:
    machine = Machine()
    asyncio.run(put(machine, life, lasts=lasts))
    (command,) = machine.commands
    assert command == PutDocument("x", {"a": 1}, life, life_ns, "document")
    assert len(machine.work) == (life == "managed" and lasts is None), "who renews it"


def test_a_managed_document_is_renewed_until_it_is_deleted_or_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(documents, "LIFE_NS", {"managed": 20_000_000})

    async def main() -> None:
        machine = Renewing()
        made = ours(machine)
        for name in ("kept", "deleted", "replaced"):
            await made.put({}, "managed", name, None, "document")
        await made.delete("deleted")
        await made.put({}, "managed", "replaced", 60, "document")
        before = len(machine.commands)
        async with asyncio.timeout(20):
            while len(machine.commands) < before + 3:
                await asyncio.sleep(0.01)
        assert {command.name for command in machine.commands[before:]} == {"kept"}
        (task,) = machine.work
        task.cancel()

    asyncio.run(main())


class Renewing(Machine):
    """Has documents renewed."""

    def start(self, work: Any) -> Any:
        self.work.append(asyncio.get_running_loop().create_task(work))


def test_a_session_that_was_replaced_renews_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its old content would stand above what the newer session has put since."""
    monkeypatch.setattr(documents, "LIFE_NS", {"managed": 20_000_000})

    async def main() -> None:
        machine = Renewing()
        await ours(machine).put({}, "managed", "x", None, "document")
        machine.host.replaced = True  # type: ignore[attr-defined]
        async with asyncio.timeout(20):
            await asyncio.wait(machine.work)
        assert len(machine.commands) == 1

    asyncio.run(main())


def test_nothing_is_signed_while_the_clock_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others would refuse it, or what is signed later by the right clock; renewals wait."""
    monkeypatch.setattr(documents, "LIFE_NS", {"managed": 20_000_000})
    monkeypatch.setattr(documents, "RETRY_S", 0.01)

    async def main() -> None:
        machine, clock = Renewing(), Clock()
        machine.host.check_clock = clock.check
        mine = ours(machine)
        await mine.put({}, "managed", "x", None, "document")
        clock.wrong = True
        with pytest.raises(ClockWrong):
            await mine.put({}, "managed", "y", None, "document")
        with pytest.raises(ClockWrong):
            await mine.delete("x")
        async with asyncio.timeout(20):
            while clock.checks < 10:
                await asyncio.sleep(0.01)
            assert [command.name for command in machine.commands] == ["x"]
            clock.wrong = False
            while len(machine.commands) < 2:
                await asyncio.sleep(0.01)
        assert machine.commands[-1].name == "x"
        for task in machine.work:
            task.cancel()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("content", "life", "lasts", "complaint"),
    [
        ({}, "stored", None, "kind='stored': give one of instant, fading, managed, durable"),
        ({}, "fading", 0, "life=0: give a timedelta or seconds"),
        ({}, "fading", float("inf"), "life=inf: give a timedelta or seconds"),
        ({}, "fading", timedelta(-1), "give a timedelta or seconds, more than 0"),
    ],
)
def test_what_cannot_be_put_is_refused(content: Any, life: Any, lasts: Any, complaint: str) -> None:
    async def main() -> None:
        await ours(Machine()).put(content, life, "x", lasts, "document")

    with pytest.raises(UsageError, match=complaint):
        asyncio.run(main())


def test_a_deletion_outlives_what_it_deletes() -> None:
    async def main() -> None:
        machine = Machine(document("old", life="durable"))
        mine = ours(machine)
        await mine.put({"a": 1}, "durable", "new", None, "document")
        await mine.delete("new")
        assert not any(isinstance(command, FindDocuments) for command in machine.commands)
        await mine.delete("old")
        assert isinstance(machine.commands[-2], FindDocuments), "put by an earlier process"
        left_ns = DAY_MS * 10**6 + HOUR_NS
        for name, command in (("new", machine.commands[1]), ("old", machine.commands[-1])):
            assert command == PutDocument(name, None, "durable", left_ns, "document")

    asyncio.run(main())


def test_a_deletion_lives_no_longer_than_documents_may() -> None:
    async def main() -> None:
        machine = Machine(document("x", life="fading"))
        await ours(machine).delete("x")
        assert machine.commands[-1].life_ns == LIFE_NS_MAX["fading"]

    asyncio.run(main())


def test_the_newest_version_is_got_and_a_deletion_is_one() -> None:
    old, new = document("x", {"v": 1}, version=1), document("x", {"v": 2}, version=2)
    gone = document("x", version=3, deleted=True)
    theirs = document("x", {"v": 9}, owner=BOB)

    async def main() -> None:
        assert (await ours(Machine(old, theirs)).get("x", None, 1.0)).value == {"v": 1}
        assert (await ours(Machine(new, old)).get("x", OWNER, 1.0)).value == {"v": 2}
        bob = show_node_id(BOB.address)
        found = await ours(Machine(old, theirs)).get("x", bob, 1.0)
        assert (found.value, found.owner) == ({"v": 9}, BOB.address)
        with pytest.raises(NotFound, match=rf"{OWNER}/x is deleted"):
            await ours(Machine(old, gone, new)).get("x", None, 1.0)
        with pytest.raises(NotFound, match=r"is not found \(9 of about 20 nodes asked, conf"):
            await ours(Machine()).get("x", None, 1.0)

    asyncio.run(main())


def test_an_address_is_a_name_or_an_owner_and_a_name() -> None:
    assert split_address("kallio") == (None, "kallio")
    assert split_address("city/kallio") == (None, "city/kallio")
    assert split_address(f"{OWNER}/city/kallio") == (OWNER, "city/kallio")
    with pytest.raises(UsageError, match="'0x12' is not a node id"):
        split_address("0x12/kallio")
