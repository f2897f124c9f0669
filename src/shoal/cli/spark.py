"""What commands that use Spark have in common."""

from __future__ import annotations

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


def environment_settings(environment: Path | None) -> dict[str, str]:
    """What Spark is told of it; UsageError if there is no such file."""
    from shoal.pipeline.package import archive_settings

    if environment is None:
        return {}
    if not environment.is_file():
        raise UsageError(f"no file {environment}: `shoal pipeline package {environment}` makes it")
    return archive_settings(str(environment))
