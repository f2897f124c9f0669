"""iptables for the packet-loss experiment and for NATs, inside .venv, on a machine that has none.

python -m scripts.network_tools
"""

from __future__ import annotations

from scripts.debian import fetch
from shoal_lab.testbed.namespaces import find_tool, own_tools

# iptables itself, and what it is linked with beyond the C library. The kernel does the rest.
PACKAGES = ("iptables", "libmnl0", "libnftnl11", "libxtables12")
STARTER = """#!/bin/sh
# The unpacked iptables, with the libraries that lie beside it.
here=$(cd "$(dirname "$0")/.." && pwd -P)
libraries=$(dirname "$here"/debian/usr/lib/*/xtables)
LD_LIBRARY_PATH=$libraries XTABLES_LIBDIR=$libraries/xtables \\
    exec "$here/debian/usr/sbin/xtables-nft-multi" iptables "$@"
"""
STARTERS = {"iptables": STARTER}


def main() -> None:
    """Fetch it if it is missing."""
    if find_tool("iptables") is None:
        fetch("iptables", own_tools(), PACKAGES, STARTERS)


if __name__ == "__main__":
    main()
