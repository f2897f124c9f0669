"""`shoal completion`: what a shell needs to complete commands, options and file names."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

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
