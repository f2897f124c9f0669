"""The MQTT broker mosquitto and its clients, inside .venv, on a machine that has none: for tests.

Debian's packages, unpacked there: nothing is installed, nothing outside .venv is written, and no
root is needed.

    python -m scripts.mosquitto
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from scripts.network_tools import download

# The broker and its clients, and what they are linked with beyond what a Debian has anyway.
PACKAGES = ("mosquitto", "mosquitto-clients", "libmosquitto1", "libcjson1", "libdlt2", "libwrap0")
COMMANDS = {
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
_SYSTEM_FOLDERS = "/usr/sbin:/sbin:/usr/bin:/bin"  # where they are, also if PATH has no sbin


def own_mosquitto() -> Path:
    """Where it is put."""
    return Path(sys.prefix, "mosquitto")


def find_command(name: str) -> str | None:
    """The path of one of its commands; None if there is none."""
    folders = (os.environ.get("PATH", ""), _SYSTEM_FOLDERS, str(own_mosquitto() / "bin"))
    return shutil.which(name, path=":".join(folders))


def fetch(folder: Path) -> None:
    """Unpack it under a folder; OSError or CalledProcessError says why not."""
    shutil.rmtree(folder, ignore_errors=True)
    work = folder / "download"
    try:
        for package in download(work, PACKAGES):
            subprocess.run(["dpkg", "-x", package, folder / "debian"], check=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    # Last, and by them only is it found: an unpacking that was interrupted is no broker.
    (folder / "bin").mkdir()
    for name, place in COMMANDS.items():
        starter = folder / "bin" / name
        starter.write_text(STARTER.replace("{folder}", place).replace("{name}", name))
        starter.chmod(0o755)


def main() -> None:
    """Fetch it if it is missing, and say so."""
    if all(find_command(name) is not None for name in COMMANDS):
        return
    print("shoal: there is no mosquitto; fetching one into .venv", file=sys.stderr)
    try:
        fetch(own_mosquitto())
    except (OSError, subprocess.SubprocessError) as error:
        print(f"shoal: none could be fetched ({error})", file=sys.stderr)


if __name__ == "__main__":
    main()
