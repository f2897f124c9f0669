"""The STUN and TURN server coturn, inside .venv, on a machine that has none: for tests of NATs.

Debian's packages, unpacked there: nothing is installed, nothing outside .venv is written, and no
root is needed.

    python -m scripts.coturn
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from scripts.network_tools import download

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
_SYSTEM_FOLDERS = "/usr/sbin:/sbin:/usr/bin:/bin"


def own_coturn() -> Path:
    """Where it is put."""
    return Path(sys.prefix, "coturn")


def find_turnserver() -> str | None:
    """The path of the server; None if there is none."""
    folders = (os.environ.get("PATH", ""), _SYSTEM_FOLDERS, str(own_coturn() / "bin"))
    return shutil.which("turnserver", path=":".join(folders))


def fetch(folder: Path) -> None:
    """Unpack it under a folder; OSError or CalledProcessError says why not."""
    shutil.rmtree(folder, ignore_errors=True)
    work = folder / "download"
    try:
        for package in download(work, PACKAGES):
            subprocess.run(["dpkg", "-x", package, folder / "debian"], check=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    # Last, and by it only is it found: an unpacking that was interrupted is no server.
    starter = folder / "bin" / "turnserver"
    starter.parent.mkdir()
    starter.write_text(STARTER)
    starter.chmod(0o755)


def main() -> None:
    """Fetch it if it is missing, and say so."""
    if find_turnserver() is not None:
        return
    print("shoal: there is no coturn; fetching one into .venv", file=sys.stderr)
    try:
        fetch(own_coturn())
    except (OSError, subprocess.SubprocessError) as error:
        print(f"shoal: none could be fetched ({error})", file=sys.stderr)


if __name__ == "__main__":
    main()
