"""Shoal and its needs as one archive, for executors whose Python has neither.

Native wheels do not travel by --py-files, which Python would have to load from inside a zip; Spark
unpacks `spark.archives` on every executor. The Python there must be of the same version and on the
same kind of machine as here, since what is packed is what is installed here.
"""

from __future__ import annotations

import marshal
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from pathlib import Path
from uuid import uuid4

import msgspec

from shoal.base.errors import UsageError

KECCAK = "safe-pysha3" if sys.platform == "linux" else "pycryptodome"  # as in identity/keccak.py
NEEDS = (
    "aiohttp", "coincurve", "cryptography", KECCAK, "lmdb", "msgspec", "numpy", "pandas", "picows",
    "pyarrow", "scipy", "zstandard",
)  # fmt: skip
"""What reports and runs of the lab import on executors. Spark itself is there already."""

OWN = ("shoal", "shoal_spark", "shoal_lab", "shoal_city", "pyspark_shoal")
"""Our packages, side by side wherever we run; the last is where Spark looks for our format."""

UNPACKED = "shoal_environment"
"""The folder that executors unpack it into, in their working directory."""

LEVEL = 1  # native code shrinks by half at once, and hardly more at ten times the time
_LEFT_OUT = re.compile(
    r"(^|/)(__pycache__|tests?|include)/|\.(pyc|pyi|pyx|pxi|pxd|cc|a|h)$"
    # Servers and stores of pyarrow's that nobody asks for here, and what stands in for C elsewhere.
    r"|^pyarrow/(lib[a-z_]*_(flight|s3)\.|_?flight\.|_s3fs\.)|^zstandard/(_cffi\.|backend_cffi)"
)
_UNCHECKED = (1).to_bytes(4, "little")  # PEP 552: bytecode that is not held against its source
_NAME = re.compile(r"[A-Za-z0-9._-]+")


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """What an archive holds."""

    file: str
    python: str
    platform: str
    packages: dict[str, str]
    files: int
    bytes: int


def package(out: Path) -> Packed:
    """Write the archive; UsageError if something it needs is not installed here."""
    if out.suffix != ".zip":
        raise UsageError(f"{out}: Spark knows archives by their ending: end it in .zip")
    versions = {name: distribution(name).version for name in _closure(NEEDS)}
    out.parent.mkdir(parents=True, exist_ok=True)
    # Under another name until it is whole: a cut one would fail far away.
    hidden = out.with_name(f".{out.name}.{uuid4().hex[:8]}")
    count = 0
    try:
        with zipfile.ZipFile(hidden, "w", zipfile.ZIP_DEFLATED, compresslevel=LEVEL) as archive:
            for name, file in sorted({**dict(_own_files()), **dict(_files(versions))}.items()):
                archive.write(file, name)
                count += 1
                if name.endswith(".py") and (bytecode := _bytecode(file)):
                    archive.writestr(cache_from_source(name), bytecode)
                    count += 1
            archive.writestr(f"{_PACKAGE.name}/{PACKED}", source_commit())
            count += 1
        hidden.replace(out)
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error}") from error
    finally:
        hidden.unlink(missing_ok=True)
    return Packed(
        file=str(out),
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        platform=sysconfig.get_platform(),
        packages={"shoal": _own_version(), **versions},
        files=count,
        bytes=out.stat().st_size,
    )


def archive_settings(archive: str) -> dict[str, str]:
    """What Spark is told so that executors import from the archive."""
    return {
        "spark.archives": f"{archive}#{UNPACKED}",
        "spark.executorEnv.PYTHONPATH": UNPACKED,
    }


def _own_version() -> str:
    try:
        return distribution("shoal").version
    except PackageNotFoundError:
        return "from source"


def _own_files() -> Iterator[tuple[str, Path]]:
    """Shoal's own, from wherever it runs: installed or not."""
    root = Path(__file__).parents[1]
    for package in OWN:
        for file in (root / package).rglob("*"):
            name = file.relative_to(root).as_posix()
            if file.is_file() and not _LEFT_OUT.search(name):
                yield name, file


def _files(packages: dict[str, str]) -> Iterator[tuple[str, Path]]:
    for package in packages:
        for entry in distribution(package).files or ():
            name = entry.as_posix()
            # What lies beside the packages are programs and their data.
            if not name.startswith("..") and not _LEFT_OUT.search(name):
                file = Path(str(entry.locate()))
                if file.is_file():
                    yield name, file


def _bytecode(module: Path) -> bytes | None:
    """Of a module, which executors then need not compile; None of what is no Python."""
    try:
        # As it was installed, if it was compiled then.
        code = SourceFileLoader(module.stem, str(module)).get_code(module.stem)
    except (SyntaxError, ValueError):
        return None  # a template
    return MAGIC_NUMBER + _UNCHECKED + source_hash(module.read_bytes()) + marshal.dumps(code)


def _closure(names: tuple[str, ...]) -> list[str]:
    """These distributions and all that they need in turn, without extras."""
    found: list[str] = []
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            needs = distribution(name).requires or []
        except PackageNotFoundError as error:
            if name in names:
                raise UsageError(
                    f"{name} is not installed here, and executors need it: "
                    "`pip install 'shoal[spark]'`"
                ) from error
            continue  # for another platform or Python
        found.append(name)
        plain = (need for need in needs if "extra ==" not in need)
        waiting += [match[0] for need in plain if (match := _NAME.match(need))]
    return sorted(found)


# Which commit runs: that of a clone, or the one that an archive for executors was packed from.


PACKED = "commit.txt"
"""Beside the modules of an archive, where there is no git."""

_PACKAGE = Path(__file__).parent
_ROOT = _PACKAGE.parents[1]  # of the source tree, if this is one


def source_commit() -> str:
    """With a plus sign if files were changed; empty if nothing tells."""
    packed = _PACKAGE / PACKED
    if packed.is_file():
        return packed.read_text().strip()
    if not (_ROOT / ".git").exists():
        return ""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(_ROOT), *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
