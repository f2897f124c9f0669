"""Namespaces, NATs and the wires between them.

    host 3, 192.168.3.2 -- lan === NAT box 3 === wan, 10.66.0.13 -- bridge, 10.66.0.1: tracker, TURN
    host 1, 10.66.0.11 ------------------------------------------/

Each namespace lives as long as the process in it, and every process dies with its parent: nothing
stays behind, and nothing of the machine's own network is touched.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path

from scripts.coturn import find_turnserver
from shoal_lab.testbed.namespaces import die_with_parent, find_tool

NET = "10.66.0"
SERVER = f"{NET}.1"
NOBODY = f"{NET}.2"
TURN_PORT = 3478
TURN_USER, TURN_PASSWORD = "node", "secret of the tests"

OPEN, FULL_CONE, PORT_RESTRICTED, SYMMETRIC = "open", "full-cone", "port-restricted", "symmetric"
KINDS = (OPEN, FULL_CONE, PORT_RESTRICTED, SYMMETRIC)

_CLONE_NEWNET = 0x40000000
_PACKAGES = {"ip": "iproute2", "iptables": "iptables", "nsenter": "util-linux"}


class NoNats(Exception):
    """This machine does not let us make NATs; says what is missing, and the remedy."""


def find_tools() -> None:
    """NoNats if a command is missing that we need."""
    for tool, package in _PACKAGES.items():
        if find_tool(tool) is None:
            raise NoNats(f"there is no {tool}: apt install {package}")
    if find_turnserver() is None:
        raise NoNats("there is no turnserver: apt install coturn, or python -m scripts.coturn")


def enter_namespace() -> None:
    """Move this process into a network namespace of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        problem = os.strerror(ctypes.get_errno())
        raise NoNats(
            f"this machine forbids network namespaces ({problem}): run as root, in a container "
            "with CAP_SYS_ADMIN and CAP_NET_ADMIN, or on a machine of your own"
        )


def fork_into_namespace(work: Callable[[], None]) -> int:
    """A child in a namespace of its own, which does its work when it is told to by a byte, and is
    there on return. Its process id, and as a side effect a namespace of that name."""
    ready, told = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child:
        os.close(told)
        if os.read(ready, 1) != b"x":
            raise NoNats("a process got no network namespace: see above")
        os.close(ready)
        return child
    status = 1
    try:
        die_with_parent(parent)
        enter_namespace()
        os.write(told, b"x")
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def make_bridge() -> None:
    """In the namespace of the Internet."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "bridge0", "type", "bridge")
    run("ip", "addr", "add", f"{SERVER}/24", "dev", "bridge0")
    run("ip", "link", "set", "bridge0", "up")
    # As on the Internet, what is for private addresses leaves, and is never heard of again. Without
    # a way for them coturn fails to send, and closes the relay that was asked to.
    run("ip", "neigh", "add", NOBODY, "lladdr", "02:00:00:00:00:02", "dev", "bridge0")
    run("ip", "route", "add", "default", "via", NOBODY)


def connect(number: int, pid: int, device: str) -> None:
    """In the namespace of the Internet: a wire to another one."""
    port = f"port{number}"
    run("ip", "link", "add", port, "type", "veth", "peer", "name", device, "netns", str(pid))
    run("ip", "link", "set", port, "master", "bridge0", "up")
    configure(pid, device, f"{NET}.{10 + number}")


def configure(pid: int, device: str, address: str, gateway: str = "") -> None:
    """In another namespace: an address, and a way to all others."""
    run("ip", "link", "set", "lo", "up", pid=pid)
    run("ip", "addr", "add", f"{address}/24", "dev", device, pid=pid)
    run("ip", "link", "set", device, "up", pid=pid)
    if gateway:
        run("ip", "route", "add", "default", "via", gateway, pid=pid)


def make_nat(number: int, kind: str, box: int, host: int) -> None:
    """A NAT box between the bridge and a host."""
    connect(number, box, "wan")
    run("ip", "link", "add", "lan", "type", "veth", "peer", "name", "eth0", "netns", str(host),
        pid=box)  # fmt: skip
    configure(box, "lan", f"192.168.{number}.1")
    configure(host, "eth0", f"192.168.{number}.2", gateway=f"192.168.{number}.1")
    run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward", pid=box)
    masquerade = ["-t", "nat", "-A", "POSTROUTING", "-o", "wan", "-j", "MASQUERADE"]
    if kind == SYMMETRIC:
        masquerade.append("--random-fully")  # another port for every peer
    run("iptables", *masquerade, pid=box)
    if kind == FULL_CONE:
        # Whoever sends to the box reaches the host; ports are kept, so that is one mapping for all.
        run("iptables", "-t", "nat", "-A", "PREROUTING", "-i", "wan", "-p", "udp",
            "-j", "DNAT", "--to-destination", f"192.168.{number}.2", pid=box)  # fmt: skip
    else:
        # What nobody asked for goes nowhere, and is not remembered either: a remembered one would
        # take the port from the host's own packets to the same peer.
        run("iptables", "-A", "INPUT", "-i", "wan", "-p", "udp", "-j", "DROP", pid=box)
        run("iptables", "-A", "FORWARD", "-i", "wan", "-m", "conntrack", "--ctstate", "NEW",
            "-j", "DROP", pid=box)  # fmt: skip


def start_turnserver(folder: Path) -> subprocess.Popen[bytes]:
    """STUN and TURN for everybody, in this namespace."""
    program, parent = find_turnserver(), os.getpid()
    assert program is not None  # find_tools comes first
    return subprocess.Popen(
        [
            program, "-n", "--listening-ip", SERVER, "--relay-ip", SERVER,
            "--listening-port", str(TURN_PORT), "--lt-cred-mech", "--realm", "shoal",
            "--user", f"{TURN_USER}:{TURN_PASSWORD}", "--no-cli", "--no-tls", "--no-dtls",
            "--log-file", "stdout", "--pidfile", str(folder / "pid"),
            "--userdb", str(folder / "users"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: die_with_parent(parent),
    )  # fmt: skip


def run(tool: str, *words: str, pid: int | None = None) -> None:
    """A command, in the namespace of a process, or here; NoNats if it fails."""
    path = find_tool(tool) or shutil.which(tool)
    inside = [] if pid is None else [find_tool("nsenter"), f"--net=/proc/{pid}/ns/net"]
    command = [str(word) for word in (*inside, path, *words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNats(f"this kernel does not do {tool} {' '.join(words)}: {done.stderr.strip()}")
