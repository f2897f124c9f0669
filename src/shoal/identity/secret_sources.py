"""Secrets are named by where they are, env:NAME or file:PATH; never by what they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shoal.base.errors import ConfigError


def split_secret_source(what: str, source: str) -> tuple[str, str]:
    """The kind of a source, and its name; ConfigError if it is none."""
    kind, _, name = source.partition(":")
    if kind not in ("env", "file") or not name:
        # Whatever stands there may be the secret: it is not repeated.
        raise ConfigError(
            f"{what}: write env:NAME or file:PATH to say where it is, never the {what} itself"
        )
    return kind, name


def read_secret(what: str, source: str, folder: Path, variables: Mapping[str, str]) -> str:
    """The secret, from where its source says it is; relative paths begin at the folder."""
    kind, name = split_secret_source(what, source)
    if kind == "env":
        value = variables.get(name)
        if value is None:
            raise ConfigError(f"{what} {source!r}: set the variable {name}")
        return value
    path = folder / name
    try:
        return path.read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(f"{what} {source!r}: cannot read {path}: {problem}") from error
