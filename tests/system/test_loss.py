"""Real nodes in network namespaces whose links lose packets; and nothing of it stays behind.

On a machine that forbids namespaces, the command says so and what to do: that is then all there
is to test, and pytest's summary says so.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.system.namespaces import is_refused, networks_forbidden
from tests.system.processes import Running, children_of, is_running, run

DELAY_MS = 20
SMALL = ["streams-loss", "--jobs", "1", "--json"]
for setting in (
    "nodes=6", f"delays={DELAY_MS}", "repeats=1", "messages_per_node=20", "interval_ms=10",
    "settle_s=0.5", "drain_s=2", "join_interval_ms=10",
):  # fmt: skip
    SMALL += ["--set", setting]
REMEDY = re.compile(r"shoal: .*(install it|run it as root|load the module|run it on a Linux)")


def forbidden() -> str:
    """Why this machine cannot make such networks; empty if it can."""
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "there is no TUN device for us"
    return networks_forbidden("-L")


def test_messages_arrive_though_packets_are_lost(tmp_path: Path) -> None:
    rates = ["--set", "options.loss_percent=[0,5]", "--set", 'options.transport="websocket"']
    done = run("lab", "run", *SMALL, *rates, "--out", str(tmp_path))
    if why := forbidden():
        is_refused(why, done, REMEDY)
        return
    assert done.returncode == 0, done.stderr
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    clean, lossy = (
        next(r for r in runs if r.get("network", {}).get("loss_percent") == rate) for rate in (0, 5)
    )
    for one in (clean, lossy):
        check_deliveries(one)
        assert one["network"]["datagrams"] == 0
    assert clean["network"]["dropped"] == 0
    part = lossy["network"]["dropped"] / lossy["network"]["packets"]
    # Four standard deviations of a few thousand packets.
    assert 0.03 < part < 0.07
    assert lossy["network"]["retransmitted"] > clean["network"]["retransmitted"]
    check_delays(tmp_path, runs=2)
    overlays = {overlay_of(folder) for folder in tmp_path.iterdir()}
    assert len(overlays) == 1, "the same seed has the same overlay, whatever is lost"


def test_messages_arrive_over_webrtc_too(tmp_path: Path) -> None:
    settings = ["--set", "options.loss_percent=2", "--set", 'options.transport="webrtc"']
    done = run("lab", "run", *SMALL, *settings, "--out", str(tmp_path))
    if why := forbidden():
        is_refused(why, done, REMEDY)
        return
    assert done.returncode == 0, done.stderr
    one = json.loads(done.stdout)
    check_deliveries(one)
    told = one["network"]
    assert told["transport"] == "webrtc"
    assert told["dropped"] > 0
    # A message goes over each link at least once, and nobody has another way than WebRTC: TCP
    # carried nothing but what nodes and tracker have to say.
    assert told["datagrams"] > one["delivered"] > told["segments"]
    check_delays(tmp_path, runs=1)


def check_deliveries(one: dict[str, Any]) -> None:
    assert (one["delivered"], one["lost"], one["connected"]) == (6 * 20 * 5, 0, True)
    assert one["network"]["overflowed"] == 0


def check_delays(results: Path, runs: int) -> None:
    folders = list(results.iterdir())
    assert len(folders) == runs
    for folder in folders:
        tenths = pq.read_table(folder / "deliveries.parquet")["delay_tenths_ms"].to_pylist()
        assert len(tenths) == 6 * 20 * 5
        assert min(tenths) >= DELAY_MS * 10, "no packet is faster than its link"


def overlay_of(folder: Path) -> frozenset[tuple[int, int]]:
    table = pq.read_table(folder / "topologies.parquet")
    return frozenset(zip(table["a"].to_pylist(), table["b"].to_pylist(), strict=True))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill"])
def test_nothing_stays_behind(how: signal.Signals) -> None:
    if why := forbidden():
        pytest.skip(f"{why}; there is nothing to leave behind")
    settings = ["--set", "options.loss_percent=0", "--set", "settle_s=600"]
    settings += ["--set", 'options.transport="webrtc"']  # its engine has threads
    with Running("lab", "run", *SMALL, *settings) as command:
        ours = namespaces_of([os.getpid()])
        # The hosts, the tracker, and the switches with the forwarder.
        command.wait_for(
            lambda: len(namespaces_of(children_of(command.process.pid)) - ours) == 6 + 1 + 1
        )
        time.sleep(1)  # into the middle of it
        processes = children_of(command.process.pid)
        made = namespaces_of(processes) - ours
        assert len(made) == 8
        command.end(how)
    deadline_s = time.monotonic() + 10
    while any(is_running(process) for process in processes):
        assert time.monotonic() < deadline_s, "a process lives on"
        time.sleep(0.02)
    everybody = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    assert not made & namespaces_of(everybody)
    assert not [name for name in made if name in Path("/proc/self/mountinfo").read_text()]


def namespaces_of(processes: Iterable[int]) -> set[str]:
    found = set()
    for process in processes:
        with suppress(OSError):  # it has just ended, or is not ours
            found.add(os.readlink(f"/proc/{process}/ns/net"))
    return found
