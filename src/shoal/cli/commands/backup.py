"""The commands."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.terminal.progress import NowAndThen

if TYPE_CHECKING:
    from shoal.cli.commands.backup_archive import Manifest

File = Annotated[Path, typer.Argument(metavar="FILE", help="The backup, a tar archive.")]
Json = Annotated[bool, typer.Option("--json", help="Print the manifest, as one line of JSON.")]


def backup(
    file: File,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A network file; may be given more than once.",
            show_default="shoal.toml, and that of `shoal up` beside it",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Copy everything that a node must not lose into one new file: its network file, keys and
    passphrases, outbox, topics, stored messages, registry. The node may run meanwhile: what it has
    acknowledged before is in the backup.

    Whoever has the backup has the keys: keep it as you keep them.

    Example: shoal backup monday.tar
    """
    from shoal.cli.commands.backup_archive import items_of, write_backup

    manifest = write_backup(file, items_of(config or _configs()), _Telling("copying"))
    _done(f"backup {file}", manifest, as_json)


def restore(
    file: File,
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="Where to; nothing in it is overwritten.")
    ] = Path(),
    as_json: Json = False,
) -> None:
    """Check every file of a backup, and then write them into a folder.

    A storage node goes on under a new log id, since it may have stored more after the backup:
    readers of its old log miss nothing by that, and get nothing twice.
    Topics and the outbox are marked as copies: before the node publishes in a topic again, it looks
    for what it published there after the backup; what was sealed keeps its place.

    One key is one node: start what you restored only when the one that it is a copy of is gone.

    Example: shoal restore monday.tar elsewhere
    """
    from shoal.cli.commands.backup_archive import OUTSIDE, read_manifest, restore_files, verify

    manifest = read_manifest(file)
    verify(file, manifest, _Telling("checking"))
    new_logs = restore_files(file, manifest, folder, _Telling("writing"), time.time_ns())
    _done(f"restored into {folder}", manifest, as_json)
    for at in new_logs:
        print(
            f"{at.folder} goes on under a new log, {at.new}: log {at.old} can be read as far as the"
            " backup has it, and readers of it go on along the new one",
            file=sys.stderr,
        )
    for entry in manifest.entries:
        if entry.name.startswith(f"{OUTSIDE}/"):
            was = entry.name.removeprefix(OUTSIDE)
            print(
                f"{was} was not in the folder, and is now {folder / entry.name}: move it there, or"
                " change the network file",
                file=sys.stderr,
            )


def _configs() -> list[Path]:
    from shoal.cli.commands.up_folder import UpFolder
    from shoal.cli.terminal.process import DEFAULT_CONFIG

    files = [DEFAULT_CONFIG, UpFolder(Path()).file]
    return files if files[1].exists() else files[:1]


def _done(what: str, manifest: Manifest, as_json: bool) -> None:
    import msgspec

    if as_json:
        print(msgspec.json.encode(manifest).decode())
        return
    for entry in manifest.entries:
        print(f"{entry.bytes:>14,}  {entry.name}")
    print(f"{what}: {len(manifest.entries)} files, all checked", file=sys.stderr)


class _Telling:
    """Says which file it is at, now and then, to whoever waits."""

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._progress = NowAndThen()

    def __call__(self, name: str) -> None:
        if self._progress.due:
            print(f"{self._doing} {name}", file=sys.stderr)
