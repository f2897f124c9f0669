"""The STUN and TURN server coturn, inside .venv, on a machine that has none: for tests of NATs.

python -m scripts.coturn
"""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.debian import fetch, find_program

# The server, and what it is linked with beyond what a Debian has anyway: databases, which we leave
# alone.
PACKAGES = (
    "coturn", "libevent-core-2.1-7", "libevent-extra-2.1-7", "libevent-openssl-2.1-7",
    "libevent-pthreads-2.1-7", "libhiredis0.14", "libmariadb3", "libpq5", "libldap-2.5-0",
    "libsasl2-2", "libsqlite3-0",
)  # fmt: skip
STARTER = """#!/bin/sh
# The unpacked turnserver, with the libraries that lie beside it.
here=$(cd "$(dirname "$0")/.." && pwd -P)
libraries=$(dirname "$here"/debian/usr/lib/*/libmariadb.so.3)
LD_LIBRARY_PATH=$libraries exec "$here/debian/usr/bin/turnserver" "$@"
"""
STARTERS = {"turnserver": STARTER}


def own_coturn() -> Path:
    """Where it is put."""
    return Path(sys.prefix, "coturn")


def find_turnserver() -> str | None:
    """The path of the server; None if there is none."""
    return find_program("turnserver", own_coturn())


def main() -> None:
    """Fetch it if it is missing."""
    if find_turnserver() is None:
        fetch("coturn", own_coturn(), PACKAGES, STARTERS)


if __name__ == "__main__":
    main()
