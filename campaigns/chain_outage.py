"""The chain stops for a minute: a private stream goes on, and what is refused is told why.

    .venv/bin/python -m campaigns.chain_outage                a minute, and half of one around it
    .venv/bin/python -m campaigns.chain_outage --seconds 20   less (16 at least)
    .venv/bin/python -m campaigns.chain_outage --json         one object, for machines

Twelve nodes in real processes, half of them on WebRTC only, a tracker, a storage node, and anvil,
which is stopped (SIGSTOP): it takes connections, and answers nobody. Bounds are the defaults of
`[registry]`. Somebody was granted something just before: keys are under way. This must hold:

- three publishers go on, and every member reads every message, once, in order
- a change is refused; so is a newcomer, by its own registry; so is one whose own registry knows it,
  by the tracker, which does not; so is a node that starts. Each is told that the chain is away
- when the chain is back, all of that works
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from shoal.base.errors import RegistryUnavailable
from shoal.base.ids import NodeId, parse_node_id
from shoal.kernel.access import Permission
from shoal.registry.config import RegistrySection
from tests.system.private_town import Town, private_town

MODULE = "campaigns.chain_outage"
SECONDS, SECONDS_MIN = 60.0, 16.0  # a newcomer is told after 15
PAUSE_S = 0.2
STRANGER, KNOWN = 0, 1  # newcomers
DEFAULTS = RegistrySection(folder="any")


def run(seconds: float) -> dict[str, Any]:
    """What was seen; AssertionError if something did not hold."""
    with private_town(DEFAULTS.staleness_s, DEFAULTS.request_s) as town:
        assert town.guests.ask("open", said=[town.file("ws"), town.file("ws")]) == [None, None]
        newcomers = [parse_node_id(id) for id, *_ in town.guests.ask("who")]
        for publisher in town.members:
            town.publish(publisher)
        town.do(town.owner.grant(town.stream, newcomers, Permission.SUBSCRIBE))
        town.settle(town.guests, *town.members)
        assert town.guests.ask_one("may", town.stream, Permission.SUBSCRIBE.name, which=KNOWN)
        town.stage.anvil.freeze()
        with ThreadPoolExecutor(1) as beside:
            told = beside.submit(refusals, town, newcomers[STRANGER])
            slowest_s = publish(town, seconds)
            refused = told.result()
        town.await_all(*town.members)
        town.stage.anvil.thaw()
        thawed_s = time.monotonic()
        for which in (STRANGER, KNOWN):
            town.until(subscribes(town, which), "a newcomer is still refused")
        town.do(town.owner.revoke(town.stream, newcomers, Permission.SUBSCRIBE))
        return {
            "seconds": seconds,
            "published": sum(map(len, town.published.values())),
            "members": sum(map(len, town.ids.values())),
            "slowest_publish_s": round(slowest_s, 3),
            "all_works_again_s": round(time.monotonic() - thawed_s, 1),
            "refused": refused,
        }


def publish(town: Town, seconds: float) -> float:
    """Three publishers, for so long; how long the slowest message took to be sent."""
    ends_s, slowest_s = time.monotonic() + seconds, 0.0
    while (now_s := time.monotonic()) < ends_s:
        for publisher in town.members:
            town.publish(publisher)
        slowest_s = max(slowest_s, time.monotonic() - now_s)
        time.sleep(PAUSE_S)
    return slowest_s


def refusals(town: Town, newcomer: NodeId) -> dict[str, str]:
    """What each of those is told who cannot have what they want."""
    refused = {}
    try:
        town.do(town.owner.revoke(town.stream, [newcomer], Permission.SUBSCRIBE))
        raise AssertionError("a change took place")
    except RegistryUnavailable as error:
        refused["a change"] = str(error)
    (answer,) = town.guests.ask("open", said=[town.file("ws")])
    refused["a node that starts"] = answer["RegistryUnavailable"]
    answer = town.guests.ask_one("subscribe", town.stream, which=STRANGER)
    refused["a newcomer"] = answer["RegistryUnavailable"]
    answer = town.guests.ask_one("subscribe", town.stream, which=KNOWN)
    refused["a newcomer that knows it may"] = answer["UsageError"]
    for reason in refused.values():
        assert "no answer within" in reason, reason
    return refused


def subscribes(town: Town, which: int) -> Callable[[], bool]:
    """Whether a newcomer is in."""
    return lambda: town.guests.ask_one("subscribe", town.stream, which=which) is None


def main() -> None:
    """Run it, and show what was seen."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}",
        description=__doc__.splitlines()[0] if __doc__ else None,
        epilog=f"example: .venv/bin/python -m {MODULE} --seconds 20",
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="60 unless told otherwise")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    if options.seconds < SECONDS_MIN:
        parser.error(f"--seconds {options.seconds:g}: give {SECONDS_MIN:g} or more")
    try:
        result = run(options.seconds)
    except AssertionError as failure:
        sys.exit(f"{failure}")
    if options.json:
        print(msgspec.json.encode(result).decode())
        return
    refused = result.pop("refused")
    for name, value in {**result, **refused}.items():
        print(f"{name:<30}{value}")


if __name__ == "__main__":
    main()
