"""The network of one run, as a process: switches, forwarder and hosts live and die with it.

    python -m shoal_lab.experiments.loss.underlay DESCRIPTOR PARENT

The process with the id PARENT gives it a plan, over the pipe with this descriptor; it answers with
a report, or with why there is none.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import NoReturn

import msgspec

from shoal.base.units import S_NS, seconds
from shoal_lab.experiments.loss.host import DONE, live, load_transport
from shoal_lab.experiments.loss.messages import HostReport, UnderlayPlan, UnderlayReport
from shoal_lab.testbed.namespaces import (
    NoUnderlay,
    count_overflows,
    count_packets,
    die_with_parent,
    enter_namespace,
    find_tools,
    lose_packets,
    pair_delays,
    wire_host,
    wire_switches,
)
from shoal_lab.testbed.packet_forwarder import DelayLine, Forwarded, forward

STEP_S_MAX = 60.0  # for a step of a host that takes a second or two, with every packet in two lost
REPORT_S_MAX = 60.0  # to write down all records, on a machine with other things to do
HOST_PRIORITY, FORWARDER_PRIORITY = 1, 2  # packets do not wait for a processor that hosts use
AHEAD_NS = S_NS // 2  # hosts hear of the beginning this long before

Life = Callable[[Connection], None]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended."""

    report: UnderlayReport | None = None
    problem: str = ""
    """Why there is none."""
    forbidden: bool = False
    """The machine does not allow it."""


class _HostLost(Exception):
    """A host does not answer."""


class _Child:
    """A process of the network, as its parent sees it."""

    def __init__(self, name: str, life: Life) -> None:
        self.name = name
        self._pipe, theirs = Pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            _live(life, theirs, parent)
        # Held by the child alone: when it ends, we hear of it.
        theirs.close()

    def tell(self, word: bytes = b"") -> None:
        self._pipe.send_bytes(word)

    def hear(self, limit_s: float = STEP_S_MAX) -> bytes:
        if not self._pipe.poll(limit_s):
            raise _HostLost(f"{self.name}: no answer within {limit_s:g} s")
        try:
            return self._pipe.recv_bytes()
        except (EOFError, OSError):
            raise _HostLost(f"{self.name} has ended") from None

    def end(self) -> None:
        """Have it end; its CPU time counts as ours then."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def await_done(self) -> None:
        """Hear that a step was done; NoUnderlay says why not."""
        word = self.hear()
        if word != DONE:
            raise NoUnderlay(word.decode())


def build_and_run(plan: UnderlayPlan) -> UnderlayReport:
    """Make the network, let the hosts do their work, and gather what they have to say."""
    find_tools()
    enter_namespace()
    load_transport(plan)
    forwarder = _start_forwarder(plan, wire_switches())
    hosts = [_start_host(plan, number) for number in range(plan.hosts)]
    lose_packets(plan.loss)
    _join(plan, hosts)
    time.sleep(seconds(plan.settle_ns))
    begin_ns = time.time_ns() + AHEAD_NS
    for host in hosts:
        host.tell(str(begin_ns).encode())
    time.sleep(max(0.0, seconds(begin_ns + plan.end_ns - time.time_ns())))
    heard = [host.hear(REPORT_S_MAX) for host in hosts]
    links, overflowed = count_packets(), count_overflows()  # tun0 goes with the forwarder
    forwarder.tell()
    forwarded = msgspec.msgpack.decode(forwarder.hear(), type=Forwarded)
    for child in (*hosts, forwarder):
        child.end()
    reports = tuple(msgspec.msgpack.decode(told, type=HostReport) for told in heard)
    return UnderlayReport(reports, links, forwarded, overflowed)


def _start_host(plan: UnderlayPlan, number: int) -> _Child:
    name = "the tracker" if number == plan.tracker else f"host {number}"
    host = _Child(name, partial(_host, plan, number))
    host.await_done()
    wire_host(number, host.pid)
    host.tell()
    host.await_done()
    return host


def _start_forwarder(plan: UnderlayPlan, tun: int) -> _Child:
    forwarder = _Child("the forwarder", partial(_forward, plan, tun))
    os.close(tun)  # it alone holds the device
    return forwarder


def _host(plan: UnderlayPlan, number: int, pipe: Connection) -> None:
    _take_priority(os.SCHED_RR, HOST_PRIORITY)
    live(plan, number, pipe)


def _forward(plan: UnderlayPlan, tun: int, pipe: Connection) -> None:
    _take_priority(os.SCHED_FIFO, FORWARDER_PRIORITY)
    line = DelayLine(pair_delays(plan.delays_ns))
    forward(tun, line, pipe.fileno())
    pipe.send_bytes(msgspec.msgpack.encode(line.report()))


def _take_priority(policy: int, priority: int) -> None:
    """Run before all processes of the machine that have none: what waits for a processor is late,
    and time is what is measured. The kernel leaves the others a twentieth whatever we do."""
    try:
        os.sched_setscheduler(0, policy, os.sched_param(priority))
    except OSError:
        logging.getLogger("shoal.lab").info("a process of the network runs without priority")


def _join(plan: UnderlayPlan, hosts: list[_Child]) -> None:
    """One after the other, so that the same seed gives the same overlay at every rate of loss."""
    for host in (hosts[-1], *hosts[:-1]):
        host.tell()
        host.await_done()
        time.sleep(seconds(plan.join_ns))


def _live(life: Life, pipe: Connection, parent: int) -> NoReturn:
    """The rest of a forked process: nothing of its parent's is to run in it."""
    code = 1
    try:
        die_with_parent(parent)
        life(pipe)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Be given a plan, answer, and end."""
    descriptor, parent = map(int, sys.argv[1:])
    die_with_parent(parent)
    pipe = Connection(descriptor)
    plan = msgspec.msgpack.decode(pipe.recv_bytes(), type=UnderlayPlan)
    try:
        answer = Answer(report=build_and_run(plan))
    except NoUnderlay as error:
        answer = Answer(problem=str(error), forbidden=True)
    except _HostLost as error:
        answer = Answer(problem=str(error))
    pipe.send_bytes(msgspec.msgpack.encode(answer))


if __name__ == "__main__":
    main()
