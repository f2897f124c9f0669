"""The MQTT broker mosquitto and its clients, inside .venv, on a machine that has none: for tests.

python -m scripts.mosquitto
"""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.debian import fetch, find_program

# The broker and its clients, and what they are linked with beyond what a Debian has anyway.
PACKAGES = ("mosquitto", "mosquitto-clients", "libmosquitto1", "libcjson1", "libdlt2", "libwrap0")
PLACES = {
    "mosquitto": "sbin",
    "mosquitto_passwd": "bin",
    "mosquitto_pub": "bin",
    "mosquitto_sub": "bin",
}
STARTER = """#!/bin/sh
# An unpacked command, with the libraries that lie beside it.
here=$(cd "$(dirname "$0")/.." && pwd -P)
libraries=$(dirname "$here"/debian/usr/lib/*/libmosquitto.so.1)
LD_LIBRARY_PATH=$libraries exec "$here/debian/usr/{folder}/{name}" "$@"
"""
STARTERS = {
    name: STARTER.replace("{folder}", folder).replace("{name}", name)
    for name, folder in PLACES.items()
}


def own_mosquitto() -> Path:
    """Where it is put."""
    return Path(sys.prefix, "mosquitto")


def find_command(name: str) -> str | None:
    """The path of one of its commands; None if there is none."""
    return find_program(name, own_mosquitto())


def main() -> None:
    """Fetch it if it is missing."""
    if any(find_command(name) is None for name in STARTERS):
        fetch("mosquitto", own_mosquitto(), PACKAGES, STARTERS)


if __name__ == "__main__":
    main()
