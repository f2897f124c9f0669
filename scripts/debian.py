"""Programs that tests need, as Debian packs them, unpacked inside .venv.

Nothing is installed, nothing outside .venv is written, and no root is needed. If it does not work
out, that is said and no more: the tests themselves say what is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.java_runtime import DOWNLOAD_S_MAX, apt_commands

_SYSTEM_FOLDERS = "/usr/sbin:/sbin:/usr/bin:/bin"  # where programs are, also if PATH has no sbin


def find_program(name: str, own: Path) -> str | None:
    """The machine's own, or the one that was unpacked; None if there is neither."""
    folders = (os.environ.get("PATH", ""), _SYSTEM_FOLDERS, str(own / "bin"))
    return shutil.which(name, path=":".join(folders))


def fetch(name: str, folder: Path, packages: Sequence[str], starters: Mapping[str, str]) -> None:
    """Unpack packages, with scripts that start what is in them, and say so."""
    print(f"shoal: there is no {name}; fetching one into .venv", file=sys.stderr)
    try:
        unpack(folder, packages, starters)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"shoal: none could be fetched ({error})", file=sys.stderr)


def unpack(folder: Path, packages: Sequence[str], starters: Mapping[str, str]) -> None:
    """The same; OSError or CalledProcessError says why not."""
    shutil.rmtree(folder, ignore_errors=True)
    work = folder / "download"
    try:
        for package in download(work, packages):
            subprocess.run(["dpkg", "-x", package, folder / "debian"], check=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    # Last, and by them only is it found: an unpacking that was interrupted is none.
    write_starters(folder, starters)


def write_starters(folder: Path, starters: Mapping[str, str]) -> None:
    """The commands that start what was unpacked."""
    (folder / "bin").mkdir(parents=True)
    for name, script in starters.items():
        starter = folder / "bin" / name
        starter.write_text(script)
        starter.chmod(0o755)


def download(work: Path, packages: Sequence[str]) -> list[Path]:
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
