"""The forwarder: each packet after its delay, in order, and nothing lost."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest

from shoal.base.units import MS_NS
from shoal_lab.testbed.namespaces import address, pair_delays
from shoal_lab.testbed.packet_forwarder import DelayLine, forward

DELAYS_NS = ((0, 30 * MS_NS, 80 * MS_NS), (40 * MS_NS, 0, 10 * MS_NS), (1, 2, 0))


def packet(sender: int, receiver: int, content: bytes = b"") -> bytes:
    """As much of an IPv4 packet as a forwarder looks at."""
    ends = [bytes(map(int, address(host).split("."))) for host in (sender, receiver)]
    return bytes(12) + b"".join(ends) + content


def test_each_pair_has_its_own_delay() -> None:
    line = DelayLine(pair_delays(DELAYS_NS))
    sent = [packet(0, 2), packet(0, 1), packet(1, 0), packet(1, 2)]
    for one in sent:
        line.hold(one, 1000)
    arrived = []
    for now_ms in (10, 30, 40, 80):
        now_ns = 1000 + now_ms * MS_NS
        assert line.take(now_ns - 1) is None, "not a nanosecond early"
        assert line.wait_ns(now_ns - 1) == 1
        arrived.append(line.take(now_ns))
    assert arrived == [sent[3], sent[1], sent[2], sent[0]]
    assert line.wait_ns(0) is None


def test_what_is_sent_first_comes_first() -> None:
    line = DelayLine(pair_delays(DELAYS_NS))
    # Contents that sort the other way round, all sent at once.
    sent = [packet(0, 1, bytes([200 - number])) for number in range(100)]
    for one in sent:
        line.hold(one, 5)
    assert [line.take(30 * MS_NS + 5) for _ in sent] == sent


def test_lateness_is_told() -> None:
    line = DelayLine(pair_delays(DELAYS_NS))
    assert line.report().late_us == (0, 0, 0)
    for _ in range(99):
        line.hold(packet(0, 1), 0)
        line.take(30 * MS_NS)
    line.hold(packet(0, 1), 0)
    line.take(31 * MS_NS)
    told = line.report()
    assert told.packets == 100
    assert told.late_us == (10, 1000, 1000)


def test_what_no_host_sent_is_dropped_and_counted() -> None:
    line = DelayLine(pair_delays(DELAYS_NS))
    line.hold(packet(0, 7), 0)
    line.hold(b"\x60 too short", 0)
    assert line.wait_ns(0) is None
    assert line.report().unknown == 2


@pytest.mark.parametrize("count", [1, 100])
def test_packets_pass_in_real_time(count: int) -> None:
    # Such a pair keeps packets apart, as a TUN device does.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stop, stopping = os.pipe()
    line = DelayLine(pair_delays(DELAYS_NS))
    thread = threading.Thread(target=forward, args=(theirs.fileno(), line, stop))
    thread.start()
    try:
        ours.settimeout(10)
        begin_s = time.monotonic()
        sent = [packet(0, 1, number.to_bytes(2)) for number in range(count)]
        sender = threading.Thread(target=lambda: [ours.send(one) for one in sent])
        sender.start()
        arrived = [ours.recv(2048)]
        first_s = time.monotonic() - begin_s
        arrived += [ours.recv(2048) for _ in range(count - 1)]
        sender.join()
    finally:
        os.write(stopping, b".")
        thread.join()
        for end in (ours, theirs):
            end.close()
        for descriptor in (stop, stopping):
            os.close(descriptor)
    assert arrived == sent
    assert first_s >= 0.030
    assert line.report().packets == count
