"""Machines that forbid network namespaces: how that is known, and shown in a test's outcome."""

from __future__ import annotations

import re
import subprocess
import warnings

from shoal_lab.testbed.namespaces import find_tool


def networks_forbidden(firewall: str) -> str:
    """Why this machine does not make a network with such a rule of iptables, found out by other
    means than ours; empty if it does."""
    tools = {name: find_tool(name) for name in ("ip", "iptables")}
    for name, path in tools.items():
        if path is None:
            return f"there is no {name}"
    link = f"{tools['ip']} link add one type veth peer name two"
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", f"{link} && {tools['iptables']} {firewall}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stderr.strip() if done.returncode else ""


def is_refused(why: str, done: subprocess.CompletedProcess[str], remedy: re.Pattern[str]) -> None:
    """The command says what to do; that no more was tested is in pytest's summary."""
    assert done.returncode == 2
    assert remedy.search(done.stderr)
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # elsewhere warnings are errors
        warnings.warn(f"only the refusal was tested, since {why}", stacklevel=2)
