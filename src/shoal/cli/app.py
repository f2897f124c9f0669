"""The commands of `shoal`, and how they end.

Exit codes: 0 done, 1 a check failed, 2 the command or a file it names is wrong. What a command
found goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, NoReturn

import typer

from shoal import __version__
from shoal.base.errors import ShoalError, UsageError
from shoal.cli.commands.backup import backup, restore
from shoal.cli.commands.doctor import doctor
from shoal.cli.commands.keys import gateway, key
from shoal.cli.commands.registry import registry
from shoal.cli.commands.search import doc, search, watch
from shoal.cli.commands.serve import serve
from shoal.cli.commands.storage import storage
from shoal.cli.commands.stream import stream
from shoal.cli.commands.topic import topic
from shoal.cli.commands.up import up
from shoal_city.commands.demo import demo
from shoal_city.commands.vehicles import vehicles
from shoal_lab.commands.lab import lab, report
from shoal_lab.commands.reddit import reddit
from shoal_spark.commands import pipeline

# `shoal completion`: what a shell needs to complete commands, options and file names.


VARIABLE = "_SHOAL_COMPLETE"  # set by the shell when it asks


class Shell(StrEnum):
    """Those that are known."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="Which shell.")],
) -> None:
    """Print the script that has a shell complete `shoal`: for what the shell reads when it starts,
    as ~/.bashrc or ~/.zshrc; fish takes a file in ~/.config/fish/completions.

    Example: shoal completion bash >> ~/.bashrc
    """
    from typer._completion_shared import get_completion_script

    print(get_completion_script(prog_name="shoal", complete_var=VARIABLE, shell=shell))


def prepare() -> None:
    """Have the questions of shells answered, if one asks."""
    if VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()


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
pipeline.command()(reddit)
pipeline.command()(vehicles)
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
