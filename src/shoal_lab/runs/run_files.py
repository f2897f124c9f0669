"""Runs on disk: one folder each, which appears whole or not at all.

    DIR/streams-smoke-1-5f2a9c01/run.json             settings, figures, provenance, rows per table
    DIR/streams-smoke-1-5f2a9c01/deliveries.parquet   one row group; run.json again in its footer
    DIR/streams-smoke-1-5f2a9c01/...

Tables are made and written by a thread, into a hidden folder, which is renamed when everything is
on the disk. What a stopped run leaves behind begins with a dot, and no reader looks at that.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from posixpath import basename
from types import TracebackType
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.base.errors import ShoalError, UsageError
from shoal.kernel.records import RUN_FILE, RUN_FORMAT
from shoal_lab.scenarios.experiment_kinds import Tables
from shoal_lab.scenarios.scenario import Scenario
from shoal_spark.executor_archive import source_commit


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """What made a run."""

    shoal: str
    commit: str
    """Empty outside a clone; with a plus sign if files were changed."""
    python: str
    machine: str
    packages: dict[str, str]


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of a run, in its own file and in the footer of every table."""

    format: int = RUN_FORMAT
    run: str
    seed: int
    scenario: Any
    result: Any
    provenance: Provenance
    tables: dict[str, int] = {}


def run_name(scenario: Scenario, seed: int) -> str:
    """The same for the same settings and seed, and for no others: a run is found again by it."""
    # A name may hold anything; a folder's may not, and must not begin with a dot.
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", scenario.name).strip("-_") or "run"
    settings = msgspec.to_builtins(msgspec.structs.replace(scenario, about="", seed=0))
    for key, value in OLD_SETTINGS.items():
        *tables, field = key.split(".")
        holder = settings[tables[0]] if tables else settings
        if holder[field] == value:
            del holder[field]  # names are older than the choice, and still find their runs
    for key in FILES:
        table, field = key.split(".")
        holder = settings[table] or {}
        if f"{field}_digest" in holder:
            holder[field] = holder.pop(f"{field}_digest")  # wherever the file lies
    digest = blake2b(msgspec.json.encode(settings), digest_size=4).hexdigest()
    return f"{plain}-{seed}-{digest}"


@cache
def provenance() -> Provenance:
    """Of whatever runs in this process."""
    return Provenance(
        shoal=_version("shoal"),
        commit=source_commit(),
        python=platform.python_version(),
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        packages={name: _version(name) for name in ("msgspec", "numpy", "pyarrow", "scipy")},
    )


class AlreadyThere(UsageError):
    """A run that was there, or has turned up meanwhile: somebody else may be at the same sweep."""


class NotWritten(ShoalError):
    """A run that is over, and could not be kept."""


class RunWriter:
    """Writes runs into a folder, one after the other, while the next one goes on."""

    def __init__(self, folder: Path, *, again: bool = False) -> None:
        self.folder = folder
        self._again = again
        self._thread = ThreadPoolExecutor(1, "shoal-run-writer")
        self._last: Future[Path] | None = None

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        if error is None and self._last is not None:
            self._last.result()

    def close(self) -> None:
        """Wait until everything is written."""
        self._thread.shutdown(wait=True)

    def prepare(self, run: str) -> None:
        """Before it is run, which may take hours: UsageError if it could not be written, and
        AlreadyThere if it is there. What stopped attempts left behind goes."""
        _check_folder(self.folder, run)
        remove_leftovers(self.folder, run)
        if not self._again:
            _refuse_again(self.folder / run)

    def write(self, info: RunInfo, tables: Tables) -> Future[Path]:
        """Have a run written; gives the folder, or what went wrong. Waits for the run before, so
        that no more than two are in memory."""
        if self._last is not None:
            self._last.result()
        self._last = self._thread.submit(write_run, self.folder, info, tables, again=self._again)
        return self._last


def write_run(folder: Path, info: RunInfo, tables: Tables, *, again: bool = False) -> Path:
    """Write one run; AlreadyThere if it is, unless `again`: then it is replaced. NotWritten if the
    disk is full, or else out of order."""
    target = folder / info.run
    try:
        if not again:
            _refuse_again(target)
        _write(target, info, tables, again=again)
    except OSError as error:
        raise NotWritten(
            f"{target} could not be written: {error}: make room, or name another folder; the same "
            "command goes on where it stopped"
        ) from error
    return target


def _write(target: Path, info: RunInfo, tables: Tables, *, again: bool) -> None:
    folder = target.parent
    folder.mkdir(parents=True, exist_ok=True)
    hidden, lock = _hidden_folder(folder, info.run)
    try:
        made = tables()
        info = msgspec.structs.replace(info, tables={name: made[name].num_rows for name in made})
        said = msgspec.json.encode(info)
        for name, table in made.items():
            _write_table(hidden / f"{name}.parquet", table, said)
        _write_bytes(hidden / RUN_FILE, msgspec.json.format(said, indent=2) + b"\n")
        _sync(hidden)
        if again and target.exists():
            old = folder / f"{hidden.name}.old"
            os.rename(target, old)
            os.rename(hidden, target)
            shutil.rmtree(old, ignore_errors=True)
        else:
            _appear(hidden, target)
        _sync(folder)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def remove_leftovers(folder: Path, run: str) -> None:
    """Remove what stopped attempts at a run left behind; not what a living process writes."""
    try:
        leftovers = [name for name in os.listdir(folder) if name.startswith(f".{run}.")]
    except OSError:
        return  # whoever wants to write there is told why that cannot be
    for hidden in [folder / name for name in leftovers]:
        try:
            lock = os.open(hidden, os.O_RDONLY)
        except FileNotFoundError:
            continue  # somebody else was quicker
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(hidden, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(lock)


def _check_folder(folder: Path, run: str) -> None:
    """Make a folder for runs if it is not there; UsageError if nothing can be written into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        hidden, lock = _hidden_folder(folder, run)
        try:
            hidden.rmdir()
        finally:
            os.close(lock)
    except OSError as error:
        reason = "it is a file" if isinstance(error, FileExistsError) else error.strerror
        raise UsageError(
            f"--out {folder}: no run can be written there: {reason}: name a folder that you may "
            "write to, or that can be made"
        ) from error


def _hidden_folder(folder: Path, run: str) -> tuple[Path, int]:
    """A new one, and the lock on it that is held while it is written: see remove_leftovers."""
    while True:
        hidden = folder / f".{run}.{uuid4().hex[:8]}"
        hidden.mkdir()
        try:
            lock = os.open(hidden, os.O_RDONLY)
        except FileNotFoundError:
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        if hidden.exists():
            return hidden, lock
        # Taken for a leftover by somebody who came before the lock.
        os.close(lock)


def _appear(hidden: Path, target: Path) -> None:
    try:
        os.rename(hidden, target)
    except OSError:
        _refuse_again(target)
        raise


def _refuse_again(target: Path) -> None:
    if target.exists():
        raise AlreadyThere(
            f"{target} is there already: --again runs it once more, in place of what is there"
        )


def _write_table(path: Path, table: pa.Table, said: bytes) -> None:
    with path.open("wb") as file:
        with pq.ParquetWriter(
            file,
            table.schema,
            compression="zstd",
            # Else readers would see our dictionaries, which are but a way to hold text.
            store_schema=False,
            write_page_checksum=True,
        ) as parquet:
            parquet.write_table(table, row_group_size=max(1, table.num_rows))
            # Not stored with the schema, so by hand.
            parquet.add_key_value_metadata({**table.schema.metadata, b"shoal.run": said})
        file.flush()
        os.fsync(file.fileno())


def _write_bytes(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Have the names in a folder on the disk, not only the files."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


# The settings of a run by dotted name, as runs are told apart by and compared.
#
# Older runs do not mention some of them, since there was no choice then. A run that has one of
# these as it always was is the same run, by name and as a repeat of others.


OLD_SETTINGS: dict[str, Any] = {
    "on": "simulator",
    "network.policy": "random",
    "network.redundant_feeds": "all",
    "network.liars": 0.0,
    "network.lie": "near",
}
"""What they were, by dotted name."""

FILES = ("network.delays", "options.workload")
"""Settings that may be files or folders; then there is a digest of these beside them."""

DIGITS = 8  # of a digest, for people

NO_SETTINGS = frozenset({"name", "about", "seed", "repeats"})
"""What a scenario says of itself, and what tells repeats apart."""


def flat_settings(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a scenario by dotted name, `faults.0.probability` for one, without what tells
    repeats apart, and without the folders in which files lie: what is in these is the setting."""
    flat: dict[str, Any] = {}
    for key, value in scenario.items():
        if key not in NO_SETTINGS:
            flat.update(_flatten(key, value))
    for path in FILES:
        digest = flat.pop(f"{path}_digest", None)
        if digest is not None and path in flat:
            flat[path] = f"{basename(str(flat[path]))} {str(digest)[:DIGITS]}"
    return flat | {name: OLD_SETTINGS[name] for name in OLD_SETTINGS if flat and name not in flat}


def _flatten(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {f"{key}.{name}": setting for name, setting in value.items()}
    if isinstance(value, list) and value and all(isinstance(table, dict) for table in value):
        return {
            f"{key}.{number}.{name}": setting
            for number, table in enumerate(value)
            for name, setting in table.items()
        }
    return {key: value}
