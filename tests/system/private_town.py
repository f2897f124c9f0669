"""A private, encrypted stream over real processes: a chain, a tracker, a storage node, and twelve
members, half of them on WebSocket, half of them on WebRTC only."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from shoal.base.ids import Contact, StreamId, parse_node_id
from shoal.identity import PrivateKey, PublicKey, ScryptCost, SeededEntropy, create_keystore
from shoal.identity.peer_id import parse_peer_id
from shoal.kernel.access import Permission
from shoal.node.blocking import LoopThread
from shoal.registry.contract_registry import ContractRegistry, put_public_key
from shoal.registry.port import Directory, StreamTerms
from tests.registry.stage import ADMIN, ALICE, Stage, anvil_stage
from tests.system.processes import Running

EACH = 6
DEGREE = 4  # fewer than there are others: some are two hops from a publisher
PATIENCE_S = 40.0
BOTH = Permission.PUBLISH | Permission.SUBSCRIBE
LISTEN = {"ws": '["ws://127.0.0.1:0"]', "webrtc": '["webrtc:"]\n[webrtc]'}
NETWORK = """
[registry]
url = "{url}"
contract = "{contract}"
finality_blocks = 0
poll_s = 0.2
request_s = {request_s}
staleness_s = {staleness_s}
[node]
listen = {listen}
"""
ROOT = Path(__file__).resolve().parents[2]


class Process(Running):
    """Some nodes, asked and answering."""

    def __init__(self) -> None:
        command = (sys.executable, "-m", "tests.system.private_peer")
        super().__init__(command=command, folder=ROOT)

    def ask(self, command: str, stream: str = "", said: object = None) -> list[Any]:
        """What each node of the process says."""
        return self._ask(command, stream, said, None)

    def ask_one(
        self, command: str, stream: str = "", said: object = None, *, which: int = 0
    ) -> Any:
        """What one of them says."""
        (answer,) = self._ask(command, stream, said, which)
        return answer

    def _ask(self, *line: object) -> list[Any]:
        self.wait_for(lambda: self.out)
        said = len(self.out)
        self.say(json.dumps(line) + "\n")
        self.wait_for(lambda: len(self.out) > said)
        answers: list[Any] = json.loads(self.out[said])
        return answers


class Town:
    """The network, and what its publishers have said."""

    def __init__(
        self,
        stage: Stage,
        loop: LoopThread,
        processes: ExitStack,
        staleness_s: float,
        request_s: float,
    ) -> None:
        self.stage = stage
        self.published: dict[str, list[Any]] = {}
        """What everybody who may read has to get, of each publisher."""
        self._loop = loop
        self._bounds = {"staleness_s": staleness_s, "request_s": request_s}
        self.owner: ContractRegistry = self.do(stage.open(ALICE, request_s=request_s))
        started = [processes.enter_context(Process()) for _ in range(5)]
        self.keeper, self.first, self.dialled, self.called, self.guests = started
        """Tracker and storage node; a publisher; the other members; whoever comes later."""
        self.stream = self._make()
        self.first.ask("open", said=[self.file("ws")])
        self.dialled.ask("open", said=[self.file("ws")] * (EACH - 1))
        self.called.ask("open", said=[self.file("webrtc")] * EACH)
        self.ids = {
            process: [parse_node_id(id) for id, *_ in process.ask("who")]
            for process in self.members
        }
        self._let_in()

    @property
    def members(self) -> tuple[Process, ...]:
        """The processes of the twelve."""
        return self.first, self.dialled, self.called

    def do(self, work: Any) -> Any:
        """Something with a registry."""
        return self._loop.call(work, PATIENCE_S)

    def file(self, kind: str, more: str = "") -> str:
        """A network file; nobody's names a tracker or a storage node: the registry does."""
        section = self.stage.section
        text = NETWORK.format(
            url=section.url,
            contract=section.contract,
            listen=LISTEN[kind],
            **self._bounds,
        )
        path = self.stage.folder / f"{len(list(self.stage.folder.glob('*.toml')))}.toml"
        path.write_text(text + more)
        return str(path)

    def key_file(self, name: str, key: PrivateKey) -> str:
        """The line of a network file that names a key."""
        path = self.stage.folder / name
        cheap = ScryptCost(n=2, r=8, p=1)
        create_keystore(path, key, "", SeededEntropy(name), cost=cheap, allow_empty_passphrase=True)
        return f'key = "{name}"\n'

    def _make(self) -> StreamId:
        """The keepers, and the stream that they keep."""
        admin = self.do(self.stage.open(ADMIN))
        for directory, section in (
            (Directory.TRACKERS, "[tracker]"),
            (Directory.STORAGE_NODES, '[storage]\nfolder = "store"'),
        ):
            assert self.keeper.ask("open", said=[self.file("ws", section + "\n")]) == [None]
            name, _, addresses = self.keeper.ask("who")[-1]
            kept = Contact(parse_node_id(name), tuple(addresses))
            self.do(admin.put_node(directory, kept))
        terms = StreamTerms(degree=DEGREE, storage_nodes=(kept.node,))
        return StreamId(self.do(self.owner.create("/private", terms)))

    def _let_in(self) -> None:
        """Those on WebSocket by peer id: keys are wrapped for them. The others, whose keys nobody
        knows, have to ask their neighbours."""
        for process in (self.first, self.dialled):
            for _, peer_id, _ in process.ask("who"):
                self.know(PublicKey.from_peer_id(parse_peer_id(peer_id)))
        everybody = [id for process in self.members for id in self.ids[process]]
        publishers = [self.ids[process][0] for process in self.members]
        self.do(self.owner.grant(self.stream, everybody, Permission.SUBSCRIBE))
        self.do(self.owner.grant(self.stream, publishers, Permission.PUBLISH))
        self.settle(self.keeper, *self.members)
        for process in self.members:
            assert process.ask("subscribe", self.stream) == [None] * len(self.ids[process])
        for process in self.members:
            self.until(
                lambda: min(map(len, process.ask("neighbours", self.stream))) >= DEGREE - 1,  # noqa: B023
                "too few neighbours",
            )

    def know(self, key: PublicKey) -> None:
        """What granting to a peer id does first."""
        self.do(put_public_key(self.owner, key))

    def settle(self, *processes: Process) -> None:
        """Everybody has seen what the registry said last: the bound is over."""
        number = self.owner.seen.number
        for process in processes:
            self.until(lambda: min(process.ask("seen")) >= number, "the chain is not followed")  # noqa: B023

    def publish(self, process: Process, count: int = 1, *, durable: bool = False) -> list[str]:
        """The first node of a process says what comes next; the ids of the messages."""
        ids = []
        for _ in range(count):
            name = f"0x{self.ids[process][0].hex()}"
            said = self.published.setdefault(name, [])
            content = {"number": len(said)}
            command = "publish" if durable else "send"
            id = process.ask_one(command, self.stream, content)
            assert isinstance(id, str), id
            said.append(content)
            ids.append(id)
        return ids

    def await_all(self, *processes: Process, but: Sequence[bytes] = ()) -> None:
        """Every message of everybody came to every member, as it was published, once, in order."""

        def behind() -> list[str]:
            return [
                str(difference)
                for process in processes
                for id, inbox in zip(self.ids[process], process.ask("inbox"), strict=True)
                if id not in but and (difference := self.difference(inbox))
            ]

        self.until(lambda: not behind(), "not all that was published came", behind)

    def difference(self, inbox: Sequence[Sequence[Any]]) -> str:
        """What is wrong with what somebody read; nothing, if it is what was published."""
        wrong = [row for row in inbox if row[2] is not None]
        got: dict[str, list[Any]] = {}
        for publisher, content, _ in inbox:
            got.setdefault(publisher, []).append(content)
        return "" if not wrong and got == self.published else f"{wrong} of {len(inbox)}: {got}"

    def until(
        self, condition: Callable[[], bool], what: str, more: Callable[[], object] = str
    ) -> None:
        """Wait for something to become true."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, f"{what}: {more()}"
            time.sleep(0.1)


@contextmanager
def private_town(staleness_s: float, request_s: float = 1.0) -> Iterator[Town]:
    """A town of its own; nothing of it is left, also if its chain is stopped at the end."""
    loop = LoopThread()
    with tempfile.TemporaryDirectory(prefix="shoal-private-") as folder:
        try:
            stage = loop.call(anvil_stage(Path(folder)), PATIENCE_S)
            try:
                with ExitStack() as processes:
                    yield Town(stage, loop, processes, staleness_s, request_s)
            finally:
                stage.anvil.thaw()
                loop.call(stage.close(), PATIENCE_S)
                stage.anvil.stop()
        finally:
            loop.close()
