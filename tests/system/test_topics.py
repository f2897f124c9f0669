"""Durable topics among eight processes: late readers, an author that is killed, and its return."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from shoal.base.ids import show_node_id
from tests.node.network import free_port
from tests.node.test_life import keystore
from tests.system.processes import Running, run

PATIENCE_S = 180.0  # eight interpreters start, and a tree finds its author again
CARRIERS = 5


class Town:
    """Network files in a folder: one for each process, with a key if it has a name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        id = show_node_id(keystore(folder / "first.key", "first", passphrase="").address)
        port = free_port()
        self._first = f"ws://127.0.0.1:{port}"
        self._entry = f'[[dht.bootstrap]]\nid = "{id}"\naddresses = ["{self._first}"]\n'

    def config(self, name: str) -> str:
        """The file of a process; the author is the one with a folder."""
        key = "" if name not in ("first", "author") else f'key = "{name}.key"\n'
        listen = self._first if name == "first" else "ws://127.0.0.1:0"
        topics = '[topics]\nfolder = "author-topics"\n' if name == "author" else ""
        path = self.folder / f"{name}.toml"
        path.write_text(f'[node]\n{key}listen = ["{listen}"]\n[dht]\n{self._entry}{topics}')
        return str(path)


def wait_for(condition: Callable[[], object], *processes: Running) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        ended = [one.err for one in processes if one.process.poll() is not None]
        assert not ended, f"one has ended: {ended}"
        assert time.monotonic() < deadline, [(one.out[-3:], one.err[-3:]) for one in processes]
        time.sleep(0.02)


def lines(process: Running) -> list[Any]:
    return [json.loads(line) for line in process.out]


def test_what_was_published_survives_its_author_and_the_author_goes_on(tmp_path: Path) -> None:
    town = Town(tmp_path)
    keystore(tmp_path / "author.key", "author", passphrase="")
    author = town.config("author")

    def subscriber(name: str) -> Running:
        config = ("--config", town.config(name))
        return Running("topic", "subscribe", cid, "--start", "earliest", "--json", *config)

    with ExitStack() as stack:
        carriers = [f"carrier{number}" for number in range(1, CARRIERS)]
        for names in (["first"], carriers):  # which the others need to begin with
            started = [Running("serve", "--config", town.config(name)) for name in names]
            for node in started:
                stack.enter_context(node)
            for node in started:
                node.wait_for(lambda node=node: len(node.out) == 3)  # type: ignore[misc]
                assert node.out[0] == "[[dht.bootstrap]]"
        made = run("topic", "create", "news", "--config", author, "--replicas", "3", "--json")
        assert made.returncode == 0, made.stderr
        cid = json.loads(made.stdout)["cid"]

        early = stack.enter_context(subscriber("early"))
        with Running("topic", "publish", cid, "--json", "--config", author) as publisher:
            publisher.say("".join(f"{number}\n" for number in range(20)))
            wait_for(lambda: len(publisher.out) == 20 and len(early.out) == 20, publisher, early)
            published = lines(publisher)
            publisher.process.send_signal(signal.SIGKILL)
            assert publisher.end() == -signal.SIGKILL
        cids = [line["cid"] for line in published]
        assert [line["text"] for line in published] == [str(number) for number in range(20)]
        assert [line["parent"] for line in published] == [None, *cids[:-1]]

        late = stack.enter_context(subscriber("late"))
        wait_for(lambda: len(late.out) == 20, late)
        for process in (early, late):
            assert [line["cid"] for line in lines(process)] == cids
            assert not any(line["gap_before"] for line in lines(process))
        back = ("--end", cids[-1], "--json", "--config", town.config("reader"))
        read = run("topic", "read", cid, *back)
        assert read.returncode == 0, read.stderr
        assert [json.loads(line)["cid"] for line in read.stdout.splitlines()] == cids[::-1]

        with Running("topic", "publish", cid, "--json", "--config", author) as publisher:
            publisher.say("20\n")
            wait_for(lambda: publisher.out, publisher)
            (event,) = lines(publisher)
            assert event["parent"] == cids[-1], "no fork"
            wait_for(lambda: len(early.out) == len(late.out) == 21, publisher, early, late)
            publisher.hang_up()
            assert publisher.end() == 0, publisher.err
        for process in (early, late):
            assert lines(process)[-1]["cid"] == event["cid"]
