"""Who may import whom inside shoal, checked on the text of one file at a time.

An import counts wherever it stands: at the top, inside a function, under TYPE_CHECKING, or as a
call of import_module with a name written out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

# From the bottom up. A unit may import itself and the lines below, never its own line or above.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("base",),
    ("identity",),
    ("kernel",),
    ("protocols",),  # its __init__.py only
    ("protocols.dht",),
    ("protocols.streams", "protocols.topics", "protocols.search"),
    ("transport", "registry", "storage"),
    ("runtime", "sim"),
    ("pipeline",),
    ("lab",),
    ("node", "gateway", "explorer"),
    ("cli",),
    ("__main__",),
)
LEVEL = {unit: level for level, units in enumerate(LAYERS) for unit in units}
PIPELINE_NEEDS = ("base", "identity", "kernel")  # executors have no more of Shoal than that
API_UNIT = "node"  # what `import shoal` gives


class Violation(NamedTuple):
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


class Import(NamedTuple):
    """One imported name: `from a.b import c` is (a.b, c), `import a.b` is (a.b, None)."""

    module: str
    name: str | None
    line: int


def layer_violations(path: str, source: str) -> list[Violation]:
    """Imports that go up, sideways or nowhere; path is relative to src: shoal/base/ids.py."""
    importer = unit_of(module_of(path))
    if importer not in LEVEL:
        return [Violation(path, 1, f"shoal.{importer} is in no layer: give it a place in LAYERS")]
    found = []
    for imported in imports_of(path, ast.parse(source, path)):
        if imported.module.split(".")[0] == "shoal":
            problem = _problem(importer, imported_unit(imported))
            if problem:
                found.append(Violation(path, imported.line, problem))
    return found


def _problem(importer: str, imported: str) -> str | None:
    if imported == importer:
        return None
    if imported not in LEVEL:
        return f"shoal.{imported} is in no layer: give it a place in LAYERS"
    if LEVEL[imported] > LEVEL[importer]:
        return f"shoal.{importer} imports shoal.{imported}, which is above it"
    if LEVEL[imported] == LEVEL[importer]:
        return f"shoal.{importer} imports its sibling shoal.{imported}"
    if importer == "pipeline" and imported not in PIPELINE_NEEDS:
        return f"shoal.pipeline imports shoal.{imported}: it speaks to nodes by files and HTTP only"
    return None


def module_of(path: str) -> str:
    """shoal/base/ids.py is shoal.base.ids; shoal/base/__init__.py is shoal.base."""
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def unit_of(module: str) -> str:
    """What LAYERS calls the place of a module."""
    parts = module.split(".")[1:]
    if not parts:
        return API_UNIT
    return ".".join(parts[:2] if parts[0] == "protocols" else parts[:1])


def imported_unit(imported: Import) -> str:
    """`from shoal import kernel` imports kernel; `from shoal import Node` imports the API."""
    deeper = unit_of(f"{imported.module}.{imported.name}")
    return deeper if deeper in LEVEL else unit_of(imported.module)


def imports_of(path: str, tree: ast.Module) -> Iterator[Import]:
    """Every import of a file, relative ones made absolute."""
    # Counted from here, one dot is the package itself.
    package = module_of(path).split(".")
    if not path.endswith("__init__.py"):
        package.pop()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield Import(alias.name, None, node.lineno)
            case ast.ImportFrom(module=module, names=names, level=level):
                if level:
                    above = package[: len(package) - level + 1]
                    module = ".".join([*above, module] if module else above)
                for alias in names:
                    yield Import(module or "", alias.name, node.lineno)
            case ast.Call(func=called, args=[ast.Constant(value=str(module)), *_]):
                if ast.unparse(called).split(".")[-1] in ("import_module", "__import__"):
                    yield Import(module, None, node.lineno)
