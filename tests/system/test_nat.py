"""Nodes behind real NATs, with a real STUN and TURN server: all pairs find a way, all is delivered.

The test makes the network namespaces, and they end with its processes. On a machine that forbids
them, the command says so and what to do: that is then all there is to test, and pytest's
summary says so.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import combinations_with_replacement

from scripts.coturn import find_turnserver
from shoal_lab.testbed.namespaces import find_tool
from tests.system.namespaces import is_refused, networks_forbidden
from tests.system.nat_town import EACH, MESSAGES
from tests.system.nat_wiring import (
    KINDS,
    NET,
    OPEN,
    PORT_RESTRICTED,
    SYMMETRIC,
)

PATIENCE_S = 130
NODES = EACH * len(KINDS)
# The port that such a NAT gives a packet depends on whom it is for, so nobody can be told of it;
# and the other side lets in nobody whom it has not written to.
HOPELESS = {(PORT_RESTRICTED, SYMMETRIC), (SYMMETRIC, SYMMETRIC)}
REFUSAL = re.compile(r"^nat_town: ")

_PR_CAPBSET_DROP, _CAP_SYS_ADMIN = 24, 21


def town(*kinds: str, before: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.system.nat_town", *kinds],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        preexec_fn=before,
    )


def forbidden() -> str:
    """Why this machine cannot make NATs; empty if it can."""
    if find_turnserver() is None:
        return "there is no turnserver"
    return networks_forbidden("-t nat -A POSTROUTING -o lo -j MASQUERADE --random-fully")


def test_nodes_behind_every_pair_of_nats_are_linked_and_the_stream_is_complete() -> None:
    done = town()
    if why := forbidden():
        is_refused(why, done, REFUSAL)
        return
    assert done.returncode == 0, done.stderr
    said = {one["id"]: one for one in map(json.loads, done.stdout.splitlines())}
    assert sorted(one["kind"] for one in said.values()) == sorted(KINDS * EACH)
    relayed: dict[tuple[str, str], set[bool]] = {}
    for id, one in said.items():
        assert one["received"] == NODES * MESSAGES, "the stream is complete"
        assert set(one["links"]) == set(said) - {id}, "all are linked with all"
        for peer, ends_there in one["links"].items():
            first, second = sorted((one["kind"], said[peer]["kind"]), key=KINDS.index)
            ends = ends_there or said[peer]["links"][id]
            relayed.setdefault((first, second), set()).add(ends)
    assert set(relayed) == set(combinations_with_replacement(KINDS, 2))
    # Over TURN where there is no other way: so the NATs are what they are called. Elsewhere a
    # direct way is found, though now and then that over TURN was there first, and is left later.
    assert {pair for pair, ways in relayed.items() if ways == {True}} >= HOPELESS
    direct = {pair for pair, ways in relayed.items() if False in ways and OPEN not in pair}
    assert direct, "some pair of NATs was passed"
    assert not direct & HOPELESS
    addresses = subprocess.run(["ip", "addr"], capture_output=True, text=True, check=False).stdout
    assert f"{NET}." not in addresses, "nothing of it is in the machine's own network"


def test_where_namespaces_are_forbidden_it_says_so() -> None:
    def drop_privilege() -> None:
        if not os.geteuid():
            ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_SYS_ADMIN, 0, 0, 0)

    done = town(OPEN, before=drop_privilege)
    assert done.returncode == 2
    assert done.stdout == ""
    if find_turnserver() is not None and find_tool("iptables") is not None:
        assert "this machine forbids network namespaces" in done.stderr
        assert "run as root, in a container with CAP_SYS_ADMIN" in done.stderr
