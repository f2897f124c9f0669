"""Who may import whom in src/, checked on the text of one file at a time.

An import counts wherever it stands: at the top, inside a function, under TYPE_CHECKING, or as a
call of import_module with a name written out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

# From the bottom up. A unit may import itself and the lines below, never its own line or above.
# Units of `shoal` are its folders; the packages beside it are units by their names.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("base",),
    ("identity",),
    ("kernel",),
    ("protocols",),  # its __init__.py only
    ("protocols.dht",),
    ("protocols.streams", "protocols.topics", "protocols.search"),
    ("transport", "registry", "storage"),
    ("runtime", "sim"),
    ("config",),
    ("node",),
    ("gateway", "explorer"),
    ("cli",),
    ("__main__",),
    ("shoal_spark",),
    ("pyspark_shoal", "shoal_spark.commands"),
    ("shoal_lab",),
    ("shoal_city",),
)
LEVEL = {unit: level for level, units in enumerate(LAYERS) for unit in units}
TOPS = ("shoal", "pyspark_shoal", "shoal_spark", "shoal_lab", "shoal_city")
SPARK_NEEDS = ("base", "identity", "kernel")  # executors have no more of Shoal than that
API_UNIT = "node"  # what `import shoal` gives
# The product knows none of its users, but for these, until they come in by an entry point; and the
# lab's child processes still know what those of the demo say.
FOR_NOW = {
    "shoal/cli/app.py": ("shoal_spark.commands", "shoal_lab.commands", "shoal_city.commands"),
    "shoal/cli/commands/doctor.py": ("shoal_spark",),
    "shoal/explorer/routes.py": ("shoal_lab.views",),
    "shoal_lab/testbed/child_process.py": ("shoal_city.demo.messages",),
}


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
        return [Violation(path, 1, f"{_full(importer)} is in no layer: give it a place in LAYERS")]
    found = []
    for imported in imports_of(path, ast.parse(source, path)):
        if imported.module.split(".")[0] in TOPS:
            problem = _problem(importer, imported_unit(imported))
            known = imported.module.startswith(FOR_NOW.get(path, ()))
            if problem and not known:
                found.append(Violation(path, imported.line, problem))
    return found


def _problem(importer: str, imported: str) -> str | None:
    if imported == importer:
        return None
    if imported not in LEVEL:
        return f"{_full(imported)} is in no layer: give it a place in LAYERS"
    if importer == "shoal_spark" and imported not in SPARK_NEEDS:
        return f"shoal_spark imports {_full(imported)}: it speaks to nodes by files and HTTP only"
    if LEVEL[imported] > LEVEL[importer]:
        return f"{_full(importer)} imports {_full(imported)}, which is above it"
    if LEVEL[imported] == LEVEL[importer]:
        return f"{_full(importer)} imports its sibling {_full(imported)}"
    return None


def _full(unit: str) -> str:
    return unit if unit.split(".")[0] in TOPS else f"shoal.{unit}"


def module_of(path: str) -> str:
    """shoal/base/ids.py is shoal.base.ids; shoal/base/__init__.py is shoal.base."""
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def unit_of(module: str) -> str:
    """What LAYERS calls the place of a module."""
    top, *parts = module.split(".")
    if top != "shoal":
        return ".".join([top, *parts[:1]]) if ".".join([top, *parts[:1]]) in LEVEL else top
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
