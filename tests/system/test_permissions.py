"""Permissions at every hop, over real processes and a chain of their own."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.base.ids import StreamId, parse_node_id
from shoal.kernel.access import Permission
from shoal.kernel.contact import Contact
from shoal.registry.port import Directory, StreamTerms
from tests.registry.stage import ADMIN, ALICE, Stage, on_anvil
from tests.system.processes import Running

STALENESS_S = 2.0
SUBSCRIBERS = 6
DEGREE = 3  # fewer than there are others: some are two hops from the publisher
NETWORK = """
[node]
listen = ["ws://127.0.0.1:0"]
[registry]
url = "{url}"
contract = "{contract}"
finality_blocks = 0
poll_s = 0.1
request_s = 0.5
staleness_s = {staleness_s}
"""


class Process(Running):
    """Some nodes, asked and answering."""

    def __init__(self, stage: Stage, name: str, count: int = 1, more: str = "") -> None:
        section = stage.section
        path = stage.folder / f"{name}.toml"
        text = NETWORK.format(url=section.url, contract=section.contract, staleness_s=STALENESS_S)
        path.write_text(text + more)
        command = (sys.executable, "-m", "tests.system.private_peer")
        super().__init__(str(path), str(count), command=command, folder=Path.cwd())

    def ready(self) -> None:
        self.wait_for(lambda: self.out)

    def ask(self, command: str, stream: str = "") -> list[Any]:
        """What each node of the process says."""
        said = len(self.out)
        self.say(json.dumps([command, stream]) + "\n")
        self.wait_for(lambda: len(self.out) > said)
        answers: list[Any] = json.loads(self.out[said])
        return answers


def until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)


def arrived(process: Process) -> list[set[int]]:
    return [set(seen) for seen, *_ in process.ask("tell")]


@on_anvil
async def test_a_private_stream_keeps_to_its_permissions(stage: Stage) -> None:
    await asyncio.to_thread(perform, stage, asyncio.get_running_loop())


def perform(stage: Stage, loop: asyncio.AbstractEventLoop) -> None:
    """In a thread: it waits for processes. What changes the registry goes back to the loop."""

    def do(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    admin, owner = do(stage.open(ADMIN)), do(stage.open(ALICE))
    keeping = '[tracker]\n[storage]\nfolder = "store"\n'
    with Process(stage, "keeper", more=keeping) as keeper:
        keeper.ready()
        ((keeper_name, addresses),) = keeper.ask("who")
        contact = Contact(parse_node_id(keeper_name), tuple(addresses))
        # Nobody's file names a tracker or a storage node: the registry does.
        for directory in Directory:
            do(admin.put_node(directory, contact))
        terms = StreamTerms(degree=DEGREE, storage_nodes=(contact.node,))
        stream: StreamId = do(owner.create("/private", terms))
        with (
            Process(stage, "publisher") as publisher,
            Process(stage, "members", SUBSCRIBERS) as members,
            Process(stage, "outsider") as outsider,
        ):
            publisher.ready()
            members.ready()
            ((name, _),) = publisher.ask("who")
            whom = [parse_node_id(member) for member, _ in members.ask("who")]
            do(owner.grant(stream, [parse_node_id(name)], Permission.PUBLISH))
            do(owner.grant(stream, [parse_node_id(name), *whom], Permission.SUBSCRIBE))
            wait_for_block(owner.seen.number, keeper, publisher, members)
            assert members.ask("subscribe", stream) == [None] * SUBSCRIBERS
            sent = {*publisher.ask("publish", stream), *publisher.ask("publish", stream)}
            until(lambda: all(sent <= seen for seen in arrived(members)), "not all arrived")
            assert members.ask("read", stream) == [2] * SUBSCRIBERS
            check_outsider(outsider, stream, keeper_name)
            check_outage(stage, stream, publisher, members)
            do(owner.revoke(stream, [parse_node_id(name)], Permission.PUBLISH))
            wait_for_block(owner.seen.number, keeper, publisher, members)
            check_revoked(stream, name, publisher, members, keeper)


def wait_for_block(number: int, *processes: Process) -> None:
    """Everybody has seen what the registry said last: the bound is over."""
    for process in processes:
        until(lambda: min(process.ask("seen")) >= number, "the chain is not followed")  # noqa: B023


def check_outsider(outsider: Process, stream: StreamId, keeper: str) -> None:
    """It is refused by its own registry; if it does not ask that, by everybody else."""
    outsider.ready()
    for command in ("subscribe", "send"):
        (refused,) = outsider.ask(command, stream)
        assert "`shoal stream grant" in refused["NotPermitted"]
    outsider.ask("stubborn")
    (refused,) = outsider.ask("subscribe", stream)
    assert "may not subscribe" in refused["NotPermitted"]
    (refused,) = outsider.ask("read", stream)
    assert "no-permission" in refused["HistoryUnavailable"]
    ((*_, linked),) = outsider.ask("tell")
    assert linked == [keeper], "the tracker, which it asks; no member of the stream"


def check_outage(stage: Stage, stream: StreamId, publisher: Process, members: Process) -> None:
    """What is known counts for its time; then messages are refused with a reason."""
    stage.anvil.freeze()
    try:
        sent: set[int] = set(publisher.ask("send", stream))
        until(lambda: all(sent <= seen for seen in arrived(members)), "the stream stopped")
        refused: dict[str, str] = {}

        def is_refused() -> bool:
            (answer,) = publisher.ask("send", stream)
            if isinstance(answer, dict):
                refused.update(answer)
            else:
                sent.add(answer)
            return bool(refused)

        until(is_refused, "what is known never became too old")
        assert f"counts for {STALENESS_S:g} s" in refused["RegistryUnavailable"]
    finally:
        stage.anvil.thaw()

    def is_sent() -> bool:
        (answer,) = publisher.ask("send", stream)
        if isinstance(answer, int):
            sent.add(answer)
        return isinstance(answer, int)

    until(is_sent, "the chain came back, and nobody noticed")
    until(lambda: all(sent <= seen for seen in arrived(members)), "something was lost")


def check_revoked(
    stream: StreamId, name: str, publisher: Process, members: Process, keeper: Process
) -> None:
    """What a revoked publisher sends stops at its neighbours: nobody takes it, and what nobody
    takes nobody passes on."""
    (refused,) = publisher.ask("send", stream)
    assert f"{name} may not publish" in refused["NotPermitted"]
    publisher.ask("stubborn")
    kept = members.ask("read", stream)

    def refusals() -> int:
        told = [*members.ask("tell"), *keeper.ask("tell")]
        return sum(refused.get("no-permission", 0) for _, _, refused, _ in told)

    before = refusals()
    sent = [publisher.ask("send", stream)[0] for _ in range(5)]
    assert all(isinstance(timestamp_ms, int) for timestamp_ms in sent)
    until(lambda: refusals() >= before + len(sent), "nobody refused")
    time.sleep(0.5)  # for what should not be under way
    for _, taken, _, _ in [*members.ask("tell"), *keeper.ask("tell")]:
        assert not set(sent) & set(taken)
    assert members.ask("read", stream) == kept
