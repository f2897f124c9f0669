"""A copy of a node's folder that runs beside the node, in real processes: the copy that started
last goes on, and the other one publishes and keeps nothing more, and says why."""

from __future__ import annotations

import json
import shutil
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from shoal.identity import PrivateKey, ScryptCost, SeededEntropy, create_keystore
from tests.cli.test_serve import get
from tests.node.network import free_port
from tests.system.processes import Running, run

STREAM = "0x" + "ab" * 20 + "/vehicles"
COST = ScryptCost(n=2, r=1, p=1)


def ask(url: str, body: object = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def answers_200(url: str) -> bool:
    return ask(url)[0] == 200


def kept(gateway: str) -> int:
    partitions = get(f"{gateway}/streams/{STREAM}/log/heads")["partitions"]
    return int(partitions["0"][0]["last"]) if partitions else 0


def gateway_of(running: Running) -> str:
    running.wait_for(lambda: len(running.out) >= 4)
    return running.out[0].removeprefix("# gateway ")


@contextmanager
def network(folder: Path) -> Iterator[Path]:
    """A tracker that runs, and the folder of a storage node with everything that it names."""
    home = folder / "home"
    home.mkdir()
    key = PrivateKey.generate(SeededEntropy("twin"))
    create_keystore(
        home / "node.key", key, "", SeededEntropy("s"), cost=COST, allow_empty_passphrase=True
    )
    port, id = free_port(), "0x" + key.address.hex()
    public = f"""
[[storage_nodes]]
id = "{id}"
addresses = ["ws://127.0.0.1:{port}"]

[[streams]]
id = "{STREAM}"
storage = ["{id}"]
"""
    tracker = f'[node]\nlisten = ["ws://127.0.0.1:0"]\n[tracker]\n{public}'
    (folder / "tracker.toml").write_text(tracker)
    with Running("serve", "--config", "tracker.toml", folder=folder) as tracking:
        tracking.wait_for(lambda: len(tracking.out) == 3)
        entries = "\n".join([*tracking.out, public])
        (folder / "client.toml").write_text(entries)
        (home / "shoal.toml").write_text(
            f'[node]\nkey = "node.key"\nlisten = ["ws://127.0.0.1:{port}"]\n'
            '[storage]\nfolder = "store"\n[gateway]\nlisten = "127.0.0.1:0"\n' + entries
        )
        yield home
        assert tracking.end(signal.SIGTERM) == 0


def test_of_two_copies_the_newer_one_goes_on_and_the_older_one_says_why(tmp_path: Path) -> None:
    with network(tmp_path) as home, Running("serve", folder=home) as original:
        at_home = gateway_of(original)
        publish = ("stream", "publish", STREAM, "--config", "../client.toml", "--durable")
        assert run(*publish, folder=home, text="1\n2\n3\n").returncode == 0
        original.wait_for(lambda: kept(at_home) == 3)
        assert ask(f"{at_home}/ready")[0] == 200

        copy = tmp_path / "copy"
        shutil.copytree(home, copy)
        with Running("serve", "--listen", f"ws://127.0.0.1:{free_port()}", folder=copy) as twin:
            at_copy = gateway_of(twin)
            original.wait_for(lambda: ask(f"{at_home}/ready")[0] == 503)
            problems = ask(f"{at_home}/ready")[1]["problems"]
            assert any("a newer session of 0x" in problem for problem in problems), problems
            original.wait_for(lambda: any("a newer session" in line for line in original.err))

            # It publishes and keeps nothing: no number of its log is given twice.
            status, answer = ask(f"{at_home}/streams/{STREAM}/messages", {"n": 4})
            assert status == 503, answer
            assert "runs elsewhere" in answer["error"]

            # The copy is the node for everybody else.
            assert ask(f"{at_copy}/ready")[0] == 200
            assert run(*publish, folder=home, text="5\n").returncode == 0
            status, answer = ask(f"{at_copy}/streams/{STREAM}/messages", {"n": 6})
            assert status in (200, 201), answer
            twin.wait_for(lambda: kept(at_copy) == 5)
            assert kept(at_home) == 3

            found = run("doctor", "--json", folder=home)
            states = {line["what"]: line for line in map(json.loads, found.stdout.splitlines())}
            assert states["session"]["state"] == "problem"
            assert "stop the other one and restart this one" in states["session"]["remedy"]
            assert found.returncode == 1

            # Who starts last is the node: restarted, the original has it back.
            assert original.end(signal.SIGTERM) == 0
            with Running("serve", folder=home) as again:
                at_home = gateway_of(again)
                twin.wait_for(lambda: ask(f"{at_copy}/ready")[0] == 503)
                assert ask(f"{at_home}/ready")[0] == 200
                assert again.end(signal.SIGTERM) == 0
            assert twin.end(signal.SIGTERM) == 0


def test_a_restart_after_a_crash_is_no_twin(tmp_path: Path) -> None:
    with network(tmp_path) as home:
        for _ in range(2):
            with Running("serve", folder=home) as node:
                ready = f"{gateway_of(node)}/ready"
                node.wait_for(partial(answers_200, ready))
                node.process.kill()
        with Running("serve", folder=home) as node:
            gateway = gateway_of(node)
            node.wait_for(lambda: ask(f"{gateway}/ready")[0] == 200)
            status, answer = ask(f"{gateway}/streams/{STREAM}/messages", {"n": 1})
            assert status in (200, 201), answer
            assert not any("session" in line for line in node.err)
            assert node.end(signal.SIGTERM) == 0
