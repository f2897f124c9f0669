"""Hosts with kernels of their own: network namespaces, the links between them, and their loss.

    host 3, 10.77.3.2 -- eth0 ===== h3 -- switches (one namespace) -- tun0 -- forwarder

Every host is a namespace with one veth pair into the namespace of the switches. Packets from hosts
are routed into tun0, where the forwarder delays them (forwarder.py), and come back out of it to be
routed to their receiver. So each passes the FORWARD chain twice, on its first link and on its
last, and each time iptables' statistic match may drop it. The sender does not learn of it: a
packet dropped in the sender's own OUTPUT chain would be an error there, and no loss.

Namespaces have no name: each lives as long as the process in it, and the kernel removes it, its
devices and its rules with that process. Processes die with their parent (die_with_parent), so
that nothing stays behind, however a run ends, and nothing needs to be looked for.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from shoal.base.errors import UsageError

NETWORK = "10.77"
TUN_QUEUE_PACKETS = 20_000  # seconds of traffic: full it would lose packets that we do not count
CONGESTION_CONTROL = "cubic"  # Linux' own default, whatever this machine is set to

_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_TUN = Path("/dev/net/tun")
_PACKAGES = {"ip": "iproute2", "iptables": "iptables"}


class NoUnderlay(UsageError):
    """This machine does not let us make a network; says what is missing, and the remedy."""


def address(host: int) -> str:
    """The address of a host."""
    return f"{NETWORK}.{host}.2"


def pair_delays(delays_ns: Sequence[Sequence[int]]) -> dict[bytes, int]:
    """Delays by the addresses of sender and receiver, as packets have them."""
    hosts = range(len(delays_ns))
    raw = [bytes(map(int, address(host).split("."))) for host in hosts]
    return {raw[a] + raw[b]: delays_ns[a][b] for a in hosts for b in hosts}


def find_tools() -> None:
    """NoUnderlay if a command is missing that we need."""
    missing = [tool for tool in _PACKAGES if find_tool(tool) is None]
    if missing:
        packages = " ".join(_PACKAGES[tool] for tool in missing)
        raise NoUnderlay(
            f"streams/loss needs {' and '.join(missing)}, and there is none on this machine: "
            f"install it (Debian, Ubuntu: apt install {packages}) and run this again"
        )


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the one that started it has ended."""
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def enter_namespace() -> None:
    """Move this process into a network namespace of its own; NoUnderlay if that is forbidden."""
    try:
        _call("unshare", _CLONE_NEWNET)
    except OSError as error:
        raise NoUnderlay(
            f"streams/loss makes network namespaces, and this machine forbids it "
            f"({error.strerror}): run it as root, in a container with CAP_SYS_ADMIN and "
            "CAP_NET_ADMIN (docker run --privileged), or on a machine of your own"
        ) from error


def wire_switches() -> int:
    """Make this process's namespace that of the switches; gives the TUN device's descriptor."""
    tun = _open_tun()
    _set("ip_forward", "1")
    for scope in ("all", "default"):
        _set(f"conf/{scope}/rp_filter", "0")  # ways there and back differ, by design
    _ip(
        "link set lo up",
        f"link set tun0 txqueuelen {TUN_QUEUE_PACKETS} up",
        "route add default dev tun0 table 100",
        # What the forwarder gives back goes to its host, all else to the forwarder.
        "rule add pref 100 iif tun0 lookup main",
        f"rule add pref 200 to {NETWORK}.0.0/16 lookup 100",
    )
    return tun


def wire_host(host: int, pid: int) -> None:
    """In the namespace of the switches: a link to the one that a process is in."""
    _ip(
        # One packet at a time: a batch of segments would be lost as one.
        f"link add h{host} gso_max_segs 1 type veth peer name eth0 netns {pid}",
        f"addr add {NETWORK}.{host}.1/24 dev h{host}",
        f"link set h{host} up",
    )


def configure_host(host: int) -> None:
    """In the namespace of a host: its end of the link."""
    _ip(
        "link set lo up",
        "link set eth0 gso_max_segs 1 up",
        f"addr add {address(host)}/24 dev eth0",
        # By route: as a setting, a namespace may choose from what the machine allows everybody.
        f"route add default via {NETWORK}.{host}.1 congctl {CONGESTION_CONTROL}",
    )


def lose_packets(probability: float) -> None:
    """In the namespace of the switches: from now on, all links lose packets, each way."""
    lose = ["-m", "statistic", "--mode", "random", "--probability", f"{probability:.6f}"]
    for side in ("-i", "-o"):
        link = ["-A", "FORWARD", side, "h+"]
        _run("iptables", *link)  # it only counts
        _run("iptables", *link, *lose, "-j", "DROP")


def count_packets() -> LinkCounts:
    """In the namespace of the switches: what passed, and what was lost."""
    return parse_counts(_run("iptables", "-nvxL", "FORWARD"))


def parse_counts(listing: str) -> LinkCounts:
    """The counters of the rules that lose_packets made, as iptables lists them."""
    packets = dropped = 0
    for line in listing.splitlines()[2:]:
        if "statistic" in line:
            dropped += int(line.split()[0])
        else:
            packets += int(line.split()[0])
    return LinkCounts(packets, dropped)


def count_overflows() -> int:
    """In the namespace of the switches: packets that tun0 had no room for."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "tun0":
            return int(counts.split()[11])  # transmitted and dropped
    raise NoUnderlay("tun0 is gone: was the network taken down by hand?")


def read_kernel() -> Kernel:
    """In the namespace of a host: what TCP and UDP have done so far."""
    counts = {
        **parse_counters(Path("/proc/self/net/snmp").read_text()),
        **parse_counters(Path("/proc/self/net/netstat").read_text()),
    }
    return Kernel(
        counts["Tcp.OutSegs"],
        counts["Tcp.RetransSegs"],
        counts.get("TcpExt.TCPTimeouts", 0),
        counts["Udp.OutDatagrams"],
    )


def parse_counters(text: str) -> Mapping[str, int]:
    """The kernel's counters, a line of names and a line of values of each protocol."""
    lines = [line.split() for line in text.splitlines()]
    return {
        f"{names[0].rstrip(':')}.{name}": int(value)
        for names, values in zip(lines[::2], lines[1::2], strict=True)
        for name, value in zip(names[1:], values[1:], strict=True)
    }


def _open_tun() -> int:
    try:
        tun = os.open(_TUN, os.O_RDWR)
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", b"tun0", _IFF_TUN | _IFF_NO_PI))
    except OSError as error:
        raise NoUnderlay(
            f"streams/loss delays packets in a TUN device, and {_TUN} cannot be used "
            f"({error.strerror}): load the module tun, or give the container that device"
        ) from error
    return tun


def _ip(*commands: str) -> None:
    _run("ip", "-batch", "-", text="\n".join(commands))


def _run(tool: str, *words: str, text: str = "") -> str:
    path = find_tool(tool)
    assert path is not None  # find_tools comes first
    done = subprocess.run([path, *words], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoUnderlay(
            f"this kernel does not do what streams/loss needs: {tool} {' '.join(words)}: "
            f"{done.stderr.strip()}: run it on a Linux with veth, tun and the statistic match"
        )
    return done.stdout


def _set(name: str, value: str) -> None:
    """A setting of the kernel, for this namespace alone."""
    file = Path("/proc/sys/net/ipv4", name)
    try:
        file.write_text(value)
    except OSError as error:
        raise NoUnderlay(
            f"{file} cannot be set to {value} ({error.strerror}): run it as root, where /proc/sys "
            "is not read-only"
        ) from error


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


# The commands that set up networks: the machine's, or those under our own environment.


_SYSTEM_FOLDERS = "/usr/sbin:/sbin:/usr/bin:/bin"  # where they are, also if PATH has no sbin


def own_tools() -> Path:
    """Where scripts/network_tools.py puts what the machine lacks."""
    return Path(sys.prefix, "network-tools")


def find_tool(name: str) -> str | None:
    """The path of a command; None if there is none."""
    folders = (os.environ.get("PATH", ""), _SYSTEM_FOLDERS, str(own_tools() / "bin"))
    return shutil.which(name, path=":".join(folders))


class Kernel(msgspec.Struct, frozen=True):
    """What the kernel of a host counted."""

    segments: int
    retransmitted: int
    timeouts: int
    datagrams: int
    """Of UDP, sent."""


class LinkCounts(msgspec.Struct, frozen=True):
    """What all links between hosts and switches were given, and lost."""

    packets: int
    dropped: int
