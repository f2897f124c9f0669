"""docs/reference.md, made of the docstrings of everything that `import shoal` gives.

python -m scripts.api_reference
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import shoal

PAGE = Path(__file__).parents[1] / "docs" / "reference.md"
HEAD = """\
# Every name of `import shoal`

Made of the docstrings by `python -m scripts.api_reference`; a test fails if it is not up to date.
What belongs together, with examples, is in [the Python API](api.md).
"""
FOR_THE_NODE = {"heard", "ended", "received"}  # what a node calls to fill a subscription


def reference() -> str:
    """The page."""
    values = {name: getattr(shoal, name) for name in shoal.__all__}
    errors = {name: value for name, value in values.items() if _is_error(value)}
    classes = {name: value for name, value in values.items() if inspect.isclass(value)}
    parts = [HEAD]
    for name, value in values.items():
        if inspect.isfunction(value):
            parts.append(f"## {name}\n\n`{_called(name, value)}`\n\n{_text(value)}\n")
    for name, value in classes.items():
        if name not in errors:
            parts.append("\n".join(_of_class(name, value)))
    rows = [
        f"| `{name}` | `{error.__base__.__name__}` | {_text(error)} |"
        for name, error in errors.items()
    ]
    parts.append("\n".join(["## Errors\n", "| | is a | |", "| --- | --- | --- |", *rows, ""]))
    rest = [f"`{name}`" for name in values if name not in classes and not callable(values[name])]
    parts.append(f"## Constants\n\n{', '.join(rest)}: what `create_topic` takes.\n")
    return "\n".join(parts)


def _is_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Exception)


def _of_class(name: str, value: type) -> Iterator[str]:
    yield f"## {name}\n\n{_text(value)}\n"
    rows: dict[str, str] = {}
    for owner in inspect.getmro(value):
        if not owner.__module__.startswith("shoal."):
            continue
        if issubclass(owner, msgspec.Struct):
            for field, annotation in inspect.get_annotations(owner).items():
                if not field.startswith("_"):
                    rows.setdefault(field, f"| `{field}: {_plain(annotation)}` | |")
        for member, found in vars(owner).items():
            inner = found.__func__ if isinstance(found, classmethod | staticmethod) else found
            inner = inner.fget if isinstance(inner, property) else inner
            if member.startswith("_") or member in FOR_THE_NODE or not inspect.isfunction(inner):
                continue
            if "used by Stream." in _text(inner):
                continue
            shown = member if isinstance(found, property) else _called(member, inner)
            rows.setdefault(member, f"| `{shown}` | {_text(inner)} |")
    if rows:
        yield "\n".join(["| | |", "| --- | --- |", *rows.values(), ""])


def _called(name: str, function: Any) -> str:
    """How it is called: names and defaults; types are in the source."""
    signature = inspect.signature(function)
    given = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    bare = signature.replace(parameters=given, return_annotation=inspect.Signature.empty)
    waits = "await " if inspect.iscoroutinefunction(function) else ""
    shown = re.sub(r"<\w+\.(\w+): [^>]*>", r"\1", f"{waits}{name}{bare}")  # enum members
    return shown.replace("|", "\\|")


def _plain(annotation: Any) -> str:
    return str(annotation).replace("|", "\\|")


def _text(value: Any) -> str:
    """The docstring in one line."""
    text = re.sub(r"\s+", " ", inspect.getdoc(value) or "")
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(reference())
