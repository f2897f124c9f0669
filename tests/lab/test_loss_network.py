"""What kernels and iptables say, and what is said when they cannot be used."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from shoal_lab.testbed import namespaces
from shoal_lab.testbed.namespaces import (
    LinkCounts,
    NoUnderlay,
    enter_namespace,
    find_tools,
    pair_delays,
    parse_counters,
    parse_counts,
)
from tests.system.processes import is_running

LISTING = """\
Chain FORWARD (policy ACCEPT 10 packets, 1000 bytes)
    pkts      bytes target     prot opt in     out     source               destination
    1200    90000            0    --  h+     *       0.0.0.0/0            0.0.0.0/0
      61     4500 DROP       0    --  h+     *       0.0.0.0/0            0.0.0.0/0 \
            statistic mode random probability 0.04999999981
    1139    85500            0    --  *      h+      0.0.0.0/0            0.0.0.0/0
      50     3900 DROP       0    --  *      h+      0.0.0.0/0            0.0.0.0/0 \
            statistic mode random probability 0.04999999981
"""


def test_counters_of_rules_are_read() -> None:
    assert parse_counts(LISTING) == LinkCounts(2339, 111)


def test_counters_of_the_kernel_are_read() -> None:
    text = "Tcp: RtoMin OutSegs RetransSegs\nTcp: 200 17 3\nUdp: Sent\nUdp: 4\n"
    assert parse_counters(text) == {
        "Tcp.RtoMin": 200, "Tcp.OutSegs": 17, "Tcp.RetransSegs": 3, "Udp.Sent": 4,
    }  # fmt: skip


def test_delays_are_found_by_the_bytes_of_a_packet() -> None:
    delays = pair_delays([[0, 5], [7, 0]])
    assert delays[bytes([10, 77, 1, 2, 10, 77, 0, 2])] == 7


def test_missing_commands_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "find_tool", lambda name: None)
    with pytest.raises(NoUnderlay, match=r"needs ip and iptables.*apt install iproute2 iptables"):
        find_tools()


def test_a_forbidden_namespace_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(name: str, *arguments: int) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(namespaces, "_call", forbidden)
    with pytest.raises(NoUnderlay, match=r"forbids it \(Operation not permitted\): run it as root"):
        enter_namespace()


def test_a_process_dies_with_its_parent() -> None:
    # A parent that ends at once, and leaves a child that would sleep on.
    child = "import os, time; from shoal_lab.testbed.namespaces import die_with_parent; "
    child += "die_with_parent(os.getppid()); print('ready', flush=True); time.sleep(60)"
    parent = (
        "import subprocess, sys; "
        f"p = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE); "
        "p.stdout.readline(); print(p.pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", parent], capture_output=True, text=True, timeout=30, check=True
    )
    deadline_s = time.monotonic() + 10
    while is_running(int(done.stdout)):
        assert time.monotonic() < deadline_s, "it lives on"
        time.sleep(0.01)


def test_an_orphan_ends_at_once() -> None:
    words = (
        "from shoal_lab.testbed.namespaces import die_with_parent; die_with_parent(1); print('on')"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
