"""Every command says what it does, with an example that can be typed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import pytest
import typer.main

from shoal.cli.app import app


def commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """A command and all below it, by what one types."""
    yield " ".join(path), command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


ALL = dict(commands(typer.main.get_command(app), ("shoal",)))
LEAVES = [path for path, command in ALL.items() if not hasattr(command, "commands")]


def example_of(path: str) -> list[str]:
    """The words of its example, from `shoal` on, without what is the shell's."""
    _, _, example = (ALL[path].help or "").partition("Example: ")
    first, *rest = example.splitlines()
    more = takewhile(lambda line: line.startswith("-"), rest)  # the line goes on
    words = shlex.split(" ".join([first, *more]))
    words = words[words.index("shoal") :]
    ends = [number for number, word in enumerate(words) if word in (">", ">>", "|", "&", "<")]
    return words[: ends[0]] if ends else words


def called_by(words: list[str]) -> str:
    """The command that a line calls."""
    path = "shoal"
    for word in words[1:]:
        if f"{path} {word}" not in ALL:
            break
        path = f"{path} {word}"
    return path


@pytest.mark.parametrize("path", ALL)
def test_help_has_a_sentence_and_an_example(path: str) -> None:
    sentence, _, _ = (ALL[path].help or "").partition("Example: ")
    assert sentence.strip(), "what does it do?"
    called = called_by(example_of(path))
    assert called in LEAVES
    assert called.startswith(path)


@pytest.mark.parametrize("path", LEAVES)
def test_the_example_is_taken_by_the_command(path: str) -> None:
    """It is of this command, its options exist, and nothing that it needs is missing."""
    words = example_of(path)
    assert called_by(words) == path
    ALL[path].make_context(path, words[len(path.split()) :])


@pytest.mark.parametrize("path", ALL)
def test_every_parameter_is_explained(path: str) -> None:
    for parameter in ALL[path].params:
        if parameter.name != "help":
            assert getattr(parameter, "help", None), f"{path}: {parameter.name} has no help"
