"""iptables for the packet-loss experiment, inside .venv, on a machine that has none.

Debian's packages, unpacked there: nothing is installed, nothing outside .venv is written, and no
root is needed. If it does not work out, that is said and no more: the experiment itself says what
is missing, and its tests then test that.

    python -m scripts.network_tools
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.java_runtime import DOWNLOAD_S_MAX, apt_commands
from shoal.lab.loss.tools import find_tool, own_tools

# iptables itself, and what it is linked with beyond the C library. The kernel does the rest.
PACKAGES = ("iptables", "libmnl0", "libnftnl11", "libxtables12")
STARTER = """#!/bin/sh
# The unpacked iptables, with the libraries that lie beside it.
here=$(cd "$(dirname "$0")/.." && pwd -P)
libraries=$(dirname "$here"/debian/usr/lib/*/xtables)
LD_LIBRARY_PATH=$libraries XTABLES_LIBDIR=$libraries/xtables \\
    exec "$here/debian/usr/sbin/xtables-nft-multi" iptables "$@"
"""


def fetch(folder: Path) -> None:
    """Unpack iptables under a folder; OSError or CalledProcessError says why not."""
    shutil.rmtree(folder, ignore_errors=True)
    work = folder / "download"
    try:
        for package in download(work):
            subprocess.run(["dpkg", "-x", package, folder / "debian"], check=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    # Last, and by it only is it found: an unpacking that was interrupted is no iptables.
    write_starter(folder)


def write_starter(folder: Path) -> None:
    """The command that starts what was unpacked."""
    starter = folder / "bin" / "iptables"
    starter.parent.mkdir()
    starter.write_text(STARTER)
    starter.chmod(0o755)


def download(work: Path, packages: Sequence[str] = PACKAGES) -> list[Path]:
    """Debian's packages, in a new folder."""
    work = work.absolute()
    apt, own_lists = apt_commands(work)
    for command in (
        [*apt, "download", *packages],
        # The machine's package lists are missing or out of date: fetch them, for us alone.
        [*own_lists, "update"],
        [*own_lists, "download", *packages],
    ):
        subprocess.run(command, cwd=work, capture_output=True, timeout=DOWNLOAD_S_MAX, check=False)
        found = sorted(work.glob("*.deb"))
        if len(found) == len(packages):
            return found
    raise OSError("apt-get does not give its packages")


def main() -> None:
    """Fetch it if it is missing, and say so."""
    if find_tool("iptables") is not None:
        return
    print("shoal: there is no iptables; fetching one into .venv", file=sys.stderr)
    try:
        fetch(own_tools())
    except (OSError, subprocess.SubprocessError) as error:
        print(f"shoal: none could be fetched ({error})", file=sys.stderr)


if __name__ == "__main__":
    main()
