"""The commands of `shoal`, and how they end.

Exit codes: 0 done, 1 a check failed, 2 the command or a file it names is wrong. What a command
found goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from shoal import __version__
from shoal.base.errors import ShoalError, UsageError
from shoal.cli.backup.command import backup, restore
from shoal.cli.completion import completion, prepare
from shoal.cli.demo.command import demo
from shoal.cli.doc import doc
from shoal.cli.doctor.command import doctor
from shoal.cli.gateway import gateway
from shoal.cli.key import key
from shoal.cli.lab import lab
from shoal.cli.pipeline import pipeline
from shoal.cli.registry import registry
from shoal.cli.report import report
from shoal.cli.search import search, watch
from shoal.cli.serve import serve
from shoal.cli.storage import storage
from shoal.cli.stream import stream
from shoal.cli.topic import topic
from shoal.cli.up import up

EXIT_FAILED = 1
EXIT_USAGE = 2

# Plain text: help that loads a formatter takes longer to start than most commands to run.
app = typer.Typer(
    name="shoal",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(up)
app.command()(serve)
app.command()(demo)
app.add_typer(stream, name="stream")
app.add_typer(registry, name="registry")
app.add_typer(topic, name="topic")
app.command()(search)
app.command()(watch)
app.add_typer(doc, name="doc")
app.add_typer(key, name="key")
app.command()(doctor)
app.command()(backup)
app.command()(restore)
app.add_typer(storage, name="storage")
app.command()(completion)
app.add_typer(gateway, name="gateway")
lab.command()(report)
app.add_typer(lab, name="lab")
app.add_typer(pipeline, name="pipeline")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"shoal {__version__}")
        raise typer.Exit


@app.callback()
def shoal(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """Decentralised publish/subscribe and search, and a lab to measure it.

    Example: shoal up
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit."""
    prepare()
    # The process ends, and its memory with it: a last look for garbage took a fifth of the time of
    # a node that starts and stops.
    atexit.register(gc.freeze)
    try:
        app(args=None if arguments is None else list(arguments), prog_name="shoal")
    except UsageError as error:
        _give_up(error, EXIT_USAGE)
    except ShoalError as error:
        _give_up(error, EXIT_FAILED)
    sys.exit(0)


def _give_up(error: ShoalError, code: int) -> NoReturn:
    print(f"shoal: {error}", file=sys.stderr)
    sys.exit(code)
