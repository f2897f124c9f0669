"""What commands that use Spark have in common."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from shoal.base.errors import UsageError

Environment = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="What `shoal pipeline package` wrote, for executors without Shoal.",
        show_default=False,
    ),
]
OWN_ERROR = re.compile(r"\bshoal\.[\w.]+: (.+)")
"""The last line of a traceback."""
SourceOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Any other option of the source; may be repeated.",
        show_default=False,
    ),
]


def environment_settings(environment: Path | None) -> dict[str, str]:
    """What Spark is told of it; UsageError if there is no such file."""
    from shoal.pipeline.package import archive_settings

    if environment is None:
        return {}
    if not environment.is_file():
        raise UsageError(f"no file {environment}: `shoal pipeline package {environment}` makes it")
    return archive_settings(str(environment))


def reason_of(error: Exception) -> str:
    """Why a query ended, in one line: our own error if it is one. It has come through Spark as the
    text of a traceback, between those of Java."""
    lines = str(error).strip().split("\n")
    ours = [found[1] for line in lines if (found := OWN_ERROR.search(line))]
    return ours[0] if ours else lines[0]


def source_options(given: list[str]) -> dict[str, str]:
    """Options of `format("shoal")`, as they are written on the command line."""
    options = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise UsageError(f"--option {text}: write NAME=VALUE")
        options[name] = value
    return options
