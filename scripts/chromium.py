"""A Chromium for the explorer's tests, inside .venv, on a machine that has none.

Debian's package and what it is linked with beyond what the machine has, unpacked there: nothing is
installed, nothing outside .venv is written, and no root is needed. It needs a Debian or one of its
kin; elsewhere it says what to install.

    python -m scripts.chromium
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from scripts.debian import write_starters
from scripts.java_runtime import DOWNLOAD_S_MAX, apt_commands, point_links_into

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PACKAGES = ("chromium", "fonts-dejavu-core")
STARTER = """#!/bin/sh
# The unpacked Chromium, with the libraries and the fonts that lie beside it.
here=$(cd "$(dirname "$0")/.." && pwd -P)
for folder in "$here"/debian/usr/lib/*-linux-gnu "$here"/debian/lib/*-linux-gnu; do
    LD_LIBRARY_PATH=$folder:$folder/nss:$folder/pulseaudio:$LD_LIBRARY_PATH
done
export LD_LIBRARY_PATH FONTCONFIG_FILE="$here/fonts.conf" XDG_CACHE_HOME="$here/cache"
exec "$here/debian/usr/lib/chromium/chromium" "$@"
"""
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <dir>/usr/share/fonts</dir>
  <dir prefix="relative">debian/usr/share/fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
</fontconfig>
"""
REMEDY = "install Chromium (Debian, Ubuntu: apt install chromium), and start again"
_TO_INSTALL = re.compile(r"^Inst (\S+) ", re.MULTILINE)


def own_folder() -> Path:
    """Where it is unpacked."""
    return Path(sys.prefix, "chromium")


def find_chromium() -> Path:
    """The machine's own, or the unpacked one; FileNotFoundError says what to do."""
    for name in NAMES:
        if found := shutil.which(name):
            return Path(found)
    own = own_folder() / "bin" / "chromium"
    if own.is_file():
        return own
    raise FileNotFoundError(f"no Chromium: run python -m scripts.chromium, or {REMEDY}")


def fetch(folder: Path) -> None:
    """Unpack it under a folder; OSError or CalledProcessError says why not."""
    shutil.rmtree(folder, ignore_errors=True)
    work = folder / "download"
    try:
        for package in download(work.absolute()):
            subprocess.run(["dpkg", "-x", package, folder / "debian"], check=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    point_links_into(folder / "debian")
    (folder / "fonts.conf").write_text(FONTS)
    # Last, and by it only is it found: an unpacking that was interrupted is no Chromium.
    write_starters(folder, {"chromium": STARTER})


def download(work: Path) -> list[Path]:
    """Debian's packages that the machine lacks, in a new folder."""
    apt, own_lists = apt_commands(work)
    for tool in (apt, own_lists):
        if tool is own_lists:  # the machine's are missing or out of date: fetch them, for us alone
            _call([*tool, "update"], work)
        wanted = missing_packages(_call([*tool, *simulation()], work))
        if wanted:
            _call([*tool, "download", *wanted], work)
        packages = sorted(work.glob("*.deb"))
        if wanted and len(packages) == len(wanted):
            return packages
    raise OSError("apt-get does not give its packages")


def simulation() -> list[str]:
    """What has apt-get say which packages it would install."""
    return ["install", "--simulate", "--no-install-recommends", *PACKAGES]


def missing_packages(said: str) -> list[str]:
    """The packages that apt-get would install, by what it said."""
    return _TO_INSTALL.findall(said)


def _call(command: list[str], work: Path) -> str:
    done = subprocess.run(
        command, cwd=work, capture_output=True, text=True, timeout=DOWNLOAD_S_MAX, check=False
    )
    return done.stdout


def main() -> None:
    """Fetch it if it is missing, and say so."""
    try:
        find_chromium()
    except FileNotFoundError:
        print("shoal: there is no Chromium; fetching one into .venv, once", file=sys.stderr)
        try:
            fetch(own_folder())
        except (OSError, subprocess.SubprocessError) as error:
            raise SystemExit(f"shoal: none could be fetched ({error}): {REMEDY}") from error


if __name__ == "__main__":
    main()
