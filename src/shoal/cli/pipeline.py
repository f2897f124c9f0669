"""`shoal pipeline`: jobs on Spark, and what it needs to run them elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.lake import lake, lake_upkeep
from shoal.cli.reddit import reddit
from shoal.cli.vehicles import vehicles

# Imported inside the commands, as elsewhere: `--help` needs none of it.

pipeline = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Streams and dumps into tables, with Spark.\n\nExample: shoal pipeline package shoal.zip",
)
pipeline.command()(lake)
pipeline.command()(lake_upkeep)
pipeline.command()(reddit)
pipeline.command()(vehicles)


@pipeline.command()
def package(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The archive to write, a .zip file.")],
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Pack Shoal and what it needs for the executors of a cluster.

    They need a Python of the same version on the same kind of machine, and nothing else. The
    archive has some 120 MB.

    Example: shoal pipeline package shoal.zip
    """
    import sys

    import msgspec

    from shoal.pipeline.package import package as pack

    print(f"packing into {out}", file=sys.stderr)
    made = pack(out)
    if json:
        print(msgspec.json.encode(made).decode())
        return
    packages = ", ".join(f"{name} {version}" for name, version in made.packages.items())
    print(f"{made.file}: {made.files:,} files, {made.bytes / 1e6:.0f} MB: {packages}")
    print(f"for Python {made.python} on {made.platform}; use it with")
    print(f"  shoal lab report DIR --master spark://HOST:PORT --environment {made.file}")
