"""`shoal doctor`: what it finds wrong, and what it says to do. `test_up.py` shows a healthy one."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from time import time_ns

import pytest

from shoal.base.errors import HistoryUnavailable
from shoal.base.ids import MessageId, StreamId
from shoal.base.units import S_NS
from shoal.cli.commands import doctor
from shoal.cli.commands.doctor_network import chain_age, clock_of, pinned_clocks
from shoal.identity import PrivateKey, ScryptCost, SeededEntropy, create_keystore
from shoal.identity.message_body import Body, encode_body
from shoal.node.streams.publishing import UnkeptMessages
from shoal.registry.chain import Block
from shoal_spark import commands
from tests.cli.test_app import ends
from tests.node.network import network_of, open_tracker, run

TRACKER = "0x" + "ab" * 20


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def examine(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, str]]]:
    code = ends("doctor", "--json")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return code, {line["what"]: line for line in lines}


def test_without_a_network_file_there_is_only_the_machine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, found = examine(capsys)
    assert code == 0
    assert found["network file"]["state"] == "warning"
    assert "`shoal up` makes one" in found["network file"]["remedy"]
    assert found["python"]["state"] == found["open files"]["state"] == "ok"


def test_everything_that_is_wrong_is_told_at_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entropy = SeededEntropy("doctor")
    key = PrivateKey.generate(entropy)
    cost = ScryptCost(n=2, r=1, p=1)
    create_keystore(Path("node.key"), key, "", entropy, cost=cost, allow_empty_passphrase=True)
    Path("node.key").chmod(0o644)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    Path("shoal.toml").write_text(
        '[node]\nkey = "node.key"\n'
        f'[[trackers]]\nid = "{TRACKER}"\naddresses = ["ws://127.0.0.1:{port}"]\n'
        '[registry]\nfolder = "registry"\n'
    )
    code, found = examine(capsys)
    assert code == 1
    assert found["key"]["state"] == "problem"
    assert "chmod 600" in found["key"]["remedy"]
    assert found["tracker"]["state"] == "problem"
    assert f"{TRACKER} at ws://127.0.0.1:{port}" in found["tracker"]["found"]
    assert found["registry"]["state"] == "problem"
    assert "shoal registry deploy" in found["registry"]["remedy"]
    assert ends("doctor") == 1
    said = capsys.readouterr()
    assert said.err == "3 problems\n"
    assert any(line.startswith("problem  key: ") for line in said.out.splitlines())


def test_a_file_that_cannot_be_read_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    Path("shoal.toml").write_text("[tracker]\ndegree = 1\n")
    code, found = examine(capsys)
    assert code == 1
    assert "tracker.degree: expected `int` >= 3" in found["network file"]["remedy"]


def test_a_node_that_knows_nobody_and_is_always_new_is_warned(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("shoal.toml").write_text("")
    code, found = examine(capsys)
    assert code == 0
    assert found["key"]["state"] == found["peers"]["state"] == "warning"


@pytest.fixture
def late(request: pytest.FixtureRequest) -> Iterator[str]:
    """The gateway of a machine whose clock is so many seconds from ours."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(200)
            self.send_header("Date", formatdate(self.log_date_time_s(), usegmt=True))
            self.end_headers()

        def log_date_time_s(self) -> float:
            import time

            return time.time() + float(request.param)

        def log_message(self, *given: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("late", "state", "said"),
    [
        (0, "ok", "as that of"),
        (20, "warning", "20 s behind"),
        (-20, "warning", "20 s ahead of"),
        (-100, "problem", "what is published here is refused"),
        (1000, "problem", "what is published here is refused"),
    ],
    indirect=["late"],
)
def test_clocks_are_compared(late: str, state: str, said: str) -> None:
    finding = clock_of(late)
    assert finding.state == state
    assert said in finding.found


@pytest.mark.parametrize(("age_s", "state"), [(30, "ok"), (3600, "warning")])
def test_a_chain_that_stands_still_is_told(age_s: int, state: str) -> None:
    finding = chain_age(Block(7, b"", 1_000), "http://127.0.0.1:8545", 1_000 + age_s)
    assert finding.state == state
    assert f"{age_s} s old" in finding.found


@pytest.mark.parametrize(
    ("free_bytes", "state"), [(10**12, "ok"), (10**9, "warning"), (10**6, "problem")]
)
def test_a_disk_without_room_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int, state: str
) -> None:
    class Usage:
        free = free_bytes

    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage)
    (finding,) = doctor.disks([folder, folder / "not" / "yet"])  # one disk, one line
    assert finding.state == state


def test_spark_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (doctor, commands):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    finding = commands.spark({})
    assert finding.state == "warning"
    assert "pip install 'shoal[spark]'" in finding.remedy
    assert doctor.python().state == "warning"


@pytest.mark.parametrize(
    ("status", "body", "state", "said"),
    [
        (503, {"ready": False, "problems": ["x: y"]}, "problem", "the disk is full"),
        (200, {"ready": True, "problems": []}, "ok", "works"),
        (401, {"error": "no key"}, "warning", "wants an API key"),
    ],
)
def test_the_roles_of_the_node_that_runs_are_shown(
    capsys: pytest.CaptureFixture[str], status: int, body: dict[str, object], state: str, said: str
) -> None:
    if "ready" in body:
        reasons = [] if body["ready"] else ["the disk is full"]
        body["roles"] = [{"role": "storage", "ready": body["ready"], "reasons": reasons}]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *given: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        text = f'[gateway]\nlisten = "127.0.0.1:{server.server_port}"\n'
        Path("shoal.toml").write_text(text)
        code, found = examine(capsys)
        server.shutdown()
    what = "roles" if status == 401 else "role storage"
    assert (found[what]["state"], code) == (state, int(state == "problem"))
    assert said in found[what]["found"]
    if status == 200:
        code, found = examine(capsys)
        assert "is the node running?" in found["roles"]["remedy"]


def test_a_store_that_is_not_there_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    entropy = SeededEntropy("doctor")
    key, cost = PrivateKey.generate(entropy), ScryptCost(n=2, r=1, p=1)
    create_keystore(Path("node.key"), key, "", entropy, cost=cost, allow_empty_passphrase=True)
    Path("shoal.toml").write_text('[node]\nkey = "node.key"\n[tracker]\n[storage]\n')
    assert "store" not in examine(capsys)[1]
    Path("node.key.stores").write_text("store\n")
    code, found = examine(capsys)
    assert (code, found["store"]["state"]) == (1, "problem")
    assert "this key has had one" in found["store"]["found"]


@pytest.mark.parametrize(
    ("ahead_s", "state", "said"),
    [
        (0, "ok", "as those of 1 trackers"),
        (20, "warning", "20.0 s ahead of"),
        (600, "problem", "600.0 s ahead of"),
        (-3600, "problem", "3600.0 s behind"),
    ],
)
def test_the_clock_is_compared_with_trackers_and_storage_nodes(
    ahead_s: int, state: str, said: str
) -> None:
    async def main() -> None:
        async with open_tracker() as tracker:
            tracker.host._clock._wall_ns = lambda: time_ns() - ahead_s * S_NS
            network = network_of(tracker)
            finding = await pinned_clocks(network)
            assert finding is not None
            assert (finding.what, finding.state) == ("clock", state)
            assert said in finding.found
        assert await pinned_clocks(network) is None, "nobody answers"

    run(main())


def test_messages_that_no_storage_node_has_confirmed_are_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = PrivateKey.generate(SeededEntropy("unkept"))
    cost = ScryptCost(n=2, r=1, p=1)
    entropy = SeededEntropy("doctor")
    create_keystore(Path("node.key"), key, "", entropy, cost=cost, allow_empty_passphrase=True)
    Path("shoal.toml").write_text('[node]\nkey = "node.key"\n')
    _, found = examine(capsys)
    assert "unkept messages" not in found
    id = MessageId(StreamId("0xowner/s"), 0, 1_767_225_600_000, 0, key.address, "c")
    body = encode_body(Body(id, None, 0, b"late"))

    async def add() -> None:
        waiting = UnkeptMessages(never_kept)
        waiting.open(folder / "node.key.unkept")
        assert waiting.add(id, key.sign(body) + body, 1)
        await waiting.close()

    asyncio.run(add())
    before = Path("node.key.unkept").read_bytes()
    _, found = examine(capsys)
    told = found["unkept messages"]
    assert told["state"] == "warning"
    assert told["found"].startswith("1 in ")
    assert "the oldest of 2026-01-01 00:00:00 UTC" in told["found"]
    assert "take them off" in told["remedy"]
    assert Path("node.key.unkept").read_bytes() == before


async def never_kept(stream: StreamId, signed: bytes, copies: int) -> None:
    raise HistoryUnavailable("no storage node answers")
