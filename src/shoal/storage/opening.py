"""What is checked before a file is trusted.

lmdb maps its file and believes it: a page that is missing or wrong ends the process. So pages are
walked without lmdb first where that takes no time, and otherwise when the file's length is wrong,
which is what a full disk or a broken copy leaves behind.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import lmdb
import lmdb.verify

from shoal.base.units import MIB
from shoal.identity import Entropy
from shoal.storage.config import StoreConfig
from shoal.storage.errors import StoreDamaged, StoreError, StoreFormatUnknown
from shoal.storage.folder import data_file, sync_folder
from shoal.storage.layout import LOG, OWN, STORE_FORMAT, Table, Tables, Txn, number_bytes, number_of

_FORMAT = b"format"
_LOG_BYTES = 16


def verify_pages(folder: Path) -> None:
    """Walk every page of a closed store; StoreDamaged says what is wrong. About 300 MB/s."""
    file = data_file(folder)
    try:
        problems: list[str] = lmdb.verify.verify(str(folder))  # type: ignore[no-untyped-call]
    except lmdb.verify.VerifyError as error:
        raise StoreDamaged(f"{file} is damaged, or no store: {error}; restore a copy") from None
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error.strerror}") from error
    # A page that nobody uses and nobody may reuse is lost room, not damage.
    wrong = [problem for problem in problems if "a leak" not in problem]
    if wrong:
        raise StoreDamaged(
            f"{file} is damaged ({len(wrong)} faults; the first: {wrong[0]}): restore a copy, or"
            " move it away and let another storage node fill a new one"
        )


def open_environment(
    folder: Path, config: StoreConfig, *, readonly: bool = False
) -> lmdb.Environment:
    """lmdb on a file that looks whole."""
    file = data_file(folder)
    try:
        size = file.stat().st_size if file.exists() else 0
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error.strerror}") from error
    if not readonly and 0 < size <= config.verify_bytes_max:  # pages of one that is written to move
        verify_pages(folder)
    map_bytes = max(config.map_bytes, (size * 5 // 4 // MIB + 1) * MIB)
    if (
        readonly
    ):  # its owner may have it grow meanwhile, and a map that is too small ends every read
        map_bytes = config.map_bytes_max
    try:
        environment = lmdb.open(
            str(folder),
            map_size=min(map_bytes, max(config.map_bytes_max, size)),
            max_dbs=len(Tables._fields),
            max_readers=config.readers_max,
            mode=0o700,
            readonly=readonly,
            create=not readonly,
            # Files of 0.9 open in every lmdb; pinned, since the library's default may move.
            lib_version=0,
        )
    except (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError) as error:
        raise StoreDamaged(f"{file} is damaged, or no store: {error}; restore a copy") from error
    except lmdb.Error as error:
        raise StoreError(f"{file} cannot be opened: {error}") from error
    try:
        # Pages that were taken and given back in one transaction may lie behind the file's end.
        pages = environment.info()["last_pgno"] + 1
        if readonly:
            return environment
        if size and size < pages * environment.stat()["psize"] and size > config.verify_bytes_max:
            verify_pages(folder)
        if not size:
            sync_folder(folder)
    except BaseException:
        environment.close()
        raise
    return environment


def open_tables(
    environment: lmdb.Environment, file: Path, entropy: Entropy, *, readonly: bool = False
) -> tuple[Tables, bytes]:
    """The tables and the own log's id; made now, all or none, if the file is new."""
    with environment.begin() as txn:
        is_new = txn.stat()["entries"] == 0
    if not is_new or readonly:
        _check_format(environment, file)
    if readonly:
        tables = Tables(*(environment.open_db(n.encode(), create=False) for n in Tables._fields))
        with environment.begin() as txn:
            return tables, _log_of(txn, tables, file)
    # Handles last only if their transaction commits, which for lmdb a read does not.
    with environment.begin(write=True) as txn:
        tables = Tables(*(_open_table(environment, txn, name, is_new) for name in Tables._fields))
        if is_new:
            log = new_log_id(entropy)
            txn.put(_FORMAT, number_bytes(STORE_FORMAT), db=tables.meta)
            txn.put(LOG, log, db=tables.meta)
            txn.put(number_bytes(OWN), log, db=tables.log_ids)
            txn.put(log, number_bytes(OWN), db=tables.log_numbers)
        return tables, _log_of(txn, tables, file)


def _log_of(txn: Txn, tables: Tables, file: Path) -> bytes:
    found = txn.get(LOG, db=tables.meta)
    if found is None or len(found) != _LOG_BYTES:
        raise StoreDamaged(f"{file} has lost the id of its log: restore a copy")
    return found


def _check_format(environment: lmdb.Environment, file: Path) -> None:
    try:
        meta = environment.open_db(Tables._fields[0].encode(), create=False)
        with environment.begin(db=meta) as txn:
            raw = txn.get(_FORMAT)
    except (lmdb.NotFoundError, lmdb.IncompatibleError):
        raw = None
    if raw is None or len(raw) != 4:
        raise StoreFormatUnknown(f"{file} is an lmdb file, but no store: name another folder")
    found = number_of(raw)
    if found > STORE_FORMAT:
        raise StoreFormatUnknown(
            f"store {file} has format {found}, this Shoal reads up to {STORE_FORMAT}: upgrade Shoal"
        )
    if found < STORE_FORMAT:
        raise StoreFormatUnknown(
            f"store {file} has format {found}, this Shoal reads {STORE_FORMAT} alone: move it away,"
            " and let another storage node fill a new one"
        )


def _open_table(environment: lmdb.Environment, txn: Txn, name: str, create: bool) -> Table:
    return environment.open_db(name.encode(), txn=txn, create=create, dupsort=name == "holders")


def new_log_id(entropy: Entropy) -> bytes:
    """The id of a log that never was."""
    return UUID(bytes=entropy.token(_LOG_BYTES), version=4).bytes
