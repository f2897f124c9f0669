"""Two storage nodes keep a topic, as processes; the one that a query reads from is killed."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from shoal.base.errors import HistoryUnavailable
from shoal.base.gateway_messages import StreamHeads
from shoal.base.ids import show_node_id
from shoal.base.offsets import Offset
from shoal_spark.source.log_client import LogServers
from shoal_spark.source.options import SourceOptions, parse_options
from tests.node.network import free_port
from tests.node.test_life import keystore
from tests.support.source_reads import read_on
from tests.system.processes import Running, run

PATIENCE_S = 120.0
STORAGE = ("a", "b")


class Town:
    """Network files: storage nodes that know each other, and an author."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gateways = {name: f"127.0.0.1:{free_port()}" for name in STORAGE}
        self._listen = {name: f"ws://127.0.0.1:{free_port()}" for name in ("first", *STORAGE)}
        self.ids = {
            name: show_node_id(keystore(folder / f"{name}.key", name, passphrase="").address)
            for name in ("first", *STORAGE, "author")
        }

    def config(self, name: str, topic: str | None = None) -> str:
        listen = self._listen.get(name, "ws://127.0.0.1:0")
        text = f'[node]\nkey = "{name}.key"\nlisten = ["{listen}"]\n'
        text += f"[dht]\n{self._entries('dht.bootstrap', ('first',))}"
        if name == "author":
            text += '[topics]\nfolder = "author-topics"\n'
        if topic is not None:
            text += self._entries("storage_nodes", STORAGE)
            text += f'[storage]\nfolder = "store-{name}"\ntopics = ["{topic}"]\n'
            text += f'[gateway]\nlisten = "{self.gateways[name]}"\n'
        path = self.folder / f"{name}.toml"
        path.write_text(text)
        return str(path)

    def serve(self, name: str, topic: str | None = None) -> Running:
        return Running("serve", "--config", self.config(name, topic))

    def _entries(self, table: str, names: tuple[str, ...]) -> str:
        return "".join(
            f'[[{table}]]\nid = "{self.ids[name]}"\naddresses = ["{self._listen[name]}"]\n'
            for name in names
        )


def wait_for(condition: Callable[[], bool], *processes: Running) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        ended = [one.err for one in processes if one.process.poll() is not None]
        assert not ended, f"one has ended: {ended}"
        assert time.monotonic() < deadline, [(one.out[-3:], one.err[-3:]) for one in processes]
        time.sleep(0.05)


def heads(options: SourceOptions) -> list[StreamHeads]:
    """What servers have that answer."""
    servers = LogServers(options, patience_s=0.0)
    try:
        return servers.heads()
    except HistoryUnavailable:
        return []  # none answers yet
    finally:
        servers.close()


def held(options: SourceOptions) -> list[list[int]]:
    """How far each has the logs that it has."""
    return [sorted(log.last for log in one.partitions.get(0, [])) for one in heads(options)]


def test_a_query_over_a_topic_goes_on_with_another_storage_node(tmp_path: Path) -> None:
    town = Town(tmp_path)
    with ExitStack() as stack:
        first = stack.enter_context(town.serve("first"))
        first.wait_for(lambda: len(first.out) == 3)
        author = town.config("author")
        made = run("topic", "create", "delays", "--config", author, "--replicas", "1", "--json")
        assert made.returncode == 0, made.stderr
        topic = json.loads(made.stdout)["cid"]
        nodes = {name: stack.enter_context(town.serve(name, topic)) for name in STORAGE}
        servers = ",".join(f"http://{address}" for address in town.gateways.values())
        given = {"servers": servers, "topic": topic, "patienceSeconds": "20"}
        options = parse_options(given, streaming=True)

        publisher = stack.enter_context(Running("topic", "publish", topic, "--config", author))
        publisher.say("".join(f"{number}\n" for number in range(30)))
        # Each has its own log, and all of the other's.
        wait_for(
            lambda: held(options) == [[30, 30]] * 2,
            *nodes.values(),
            publisher,
        )
        at, got = read_on(options, Offset(), limit=7)
        assert sorted(got, key=int) == [str(number) for number in range(30)]

        owner = next(one.node for one in heads(options) if one.own == at.partitions[0].log)
        dead = next(name for name in STORAGE if town.ids[name] == owner)
        nodes[dead].process.send_signal(signal.SIGKILL)
        assert nodes[dead].end() == -signal.SIGKILL
        at, more = read_on(options, at)
        assert more == [], "what was read does not come again from the other's log"
        publisher.say("".join(f"{number}\n" for number in range(30, 45)))
        (left,) = [nodes[name] for name in STORAGE if name != dead]
        wait_for(lambda: held(options) == [[30, 45]], left, publisher)
        at, more = read_on(options, at, limit=4)
        assert sorted(got + more, key=int) == [str(number) for number in range(45)]
        assert list(at.partitions[0].minus.values()) == [30]
