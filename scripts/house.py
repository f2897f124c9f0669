"""Figures of the house: how many source files, how large, and who imports whom.

    python -m scripts.house                  a table
    python -m scripts.house --list           and the offenders: folders, modules, names
    python -m scripts.house --json           one object, offenders included
    python -m scripts.house path/to/src      another tree

What counts how:

    source file       a .py file below src, without __init__.py; its lines are all of its lines
    large folder      more than 16 source files, without those of the folders in it
    importer          a source file with an import of the module, at the top, in a function or for
                      type checkers. A name that comes by a re-export, through __init__.py or
                      another module, is an import of the module which defines it
    loaded by name    a module that an entry point of pyproject.toml names, or a string in the code
                      ("shoal.lab.match:MATCH", the argument after -m), or that is a __main__.py. It
                      may have no importer, and is not among the modules with a single one
    code line         no blank line, comment, docstring (also of a field) or import. The lines of a
                      signature, from `def` to its colon, are code lines, and are shown apart, too
    function          every `def`, also methods and those within others; no lambda. Its length is
                      from `def` to its last line, with its docstring and without its decorators
    without importer  what only an __init__.py exports (the Python API, the format of Spark), and
                      what only tests, benchmarks and scripts use
    class name        the names of all classes, also of those within others
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

import msgspec

SRC = Path(__file__).parents[1] / "src"
FOLDER_FILES_MAX = 16
SHORT_MODULE_LINES = 100  # with less, a module with a single importer belongs in that
SHORT_FUNCTION_LINES = 6
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


class Module(msgspec.Struct):
    """One file, as far as it is counted."""

    name: str
    path: str
    """Below src."""
    source: str
    nodes: list[ast.AST]
    bound: dict[str, tuple[str, str]] = {}
    """Names that it imports, and from which module under which name."""

    @property
    def is_package(self) -> bool:
        return self.path.endswith("__init__.py")

    @property
    def lines(self) -> int:
        return len(self.source.splitlines())


class Lines(msgspec.Struct, frozen=True):
    """The lines of one file, or of all, by what is on them."""

    all: int = 0
    code: int = 0
    signatures: int = 0
    """Of the code lines."""
    imports: int = 0
    docstrings: int = 0
    blank_or_comment: int = 0

    def __add__(self, other: Lines) -> Lines:
        mine, others = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Lines(*(one + another for one, another in zip(mine, others, strict=True)))


class SingleImporter(msgspec.Struct, frozen=True):
    """A module that only one other imports."""

    module: str
    lines: int
    importer: str


class House(msgspec.Struct, frozen=True):
    """The figures of a tree, and what is behind them."""

    source_files: int
    median_lines: float
    lines: Lines
    large_folders: dict[str, int]
    single_importer: list[SingleImporter]
    loaded_by_name: dict[str, int]
    """Modules, and how many importers each has all the same."""
    without_importer: list[str]
    functions: int
    short_functions: int
    repeated_classes: dict[str, list[str]]
    """Names, and the modules that define them."""

    @property
    def short_single_importer(self) -> list[SingleImporter]:
        return [one for one in self.single_importer if one.lines < SHORT_MODULE_LINES]

    def figures(self) -> dict[str, float]:
        """What the table shows, in its order."""
        return {
            "source files": self.source_files,
            "median of their lines": self.median_lines,
            f"folders with more than {FOLDER_FILES_MAX} files": len(self.large_folders),
            "modules with a single importer": len(self.single_importer),
            f"  of these, under {SHORT_MODULE_LINES} lines": len(self.short_single_importer),
            "modules loaded by name": len(self.loaded_by_name),
            "other modules without an importer": len(self.without_importer),
            "lines": self.lines.all,
            "code lines": self.lines.code,
            "  of these, signatures": self.lines.signatures,
            "imports": self.lines.imports,
            "docstrings": self.lines.docstrings,
            "blank lines and comments": self.lines.blank_or_comment,
            "functions": self.functions,
            f"  of {SHORT_FUNCTION_LINES} lines or shorter": self.short_functions,
            "class names defined more than once": len(self.repeated_classes),
            "  classes under these names": sum(map(len, self.repeated_classes.values())),
        }

    def offenders(self) -> Iterator[str]:
        """What `--list` shows below the table."""
        yield f"Folders with more than {FOLDER_FILES_MAX} files"
        for folder, files in self.large_folders.items():
            yield f"  {folder}: {files}"
        yield "Modules with a single importer"
        for one in self.single_importer:
            yield f"  {one.module} ({one.lines} lines) <- {one.importer}"
        yield "Modules loaded by name, with the number of their importers"
        for module, importers in self.loaded_by_name.items():
            yield f"  {module}: {importers}"
        yield "Other modules without an importer"
        for module in self.without_importer:
            yield f"  {module}"
        yield "Class names defined more than once"
        for name, modules in self.repeated_classes.items():
            yield f"  {name} ({len(modules)}): {', '.join(modules)}"


def house(src: Path) -> House:
    """Count the tree below a folder."""
    modules = read_modules(src)
    files = [module for module in modules.values() if not module.is_package]
    importers = importers_of(modules)
    by_name = loaded_by_name(modules, entry_points(src.parent / "pyproject.toml"))
    folders = Counter(str(Path(module.path).parent) for module in files)
    functions = [
        node.end_lineno - node.lineno + 1
        for module in files
        for node in module.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    ]
    classes = defaultdict(list)
    for module in files:
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(module.name)
    return House(
        source_files=len(files),
        median_lines=median(module.lines for module in files) if files else 0,
        lines=sum((lines_of(module.source, module.nodes) for module in files), Lines()),
        large_folders={
            folder: count
            for folder, count in sorted(folders.items(), key=lambda item: -item[1])
            if count > FOLDER_FILES_MAX
        },
        single_importer=[
            SingleImporter(module.name, module.lines, *importers[module.name])
            for module in files
            if len(importers[module.name]) == 1 and module.name not in by_name
        ],
        loaded_by_name={
            module.name: len(importers[module.name]) for module in files if module.name in by_name
        },
        without_importer=[
            module.name
            for module in files
            if not importers[module.name] and module.name not in by_name
        ],
        functions=len(functions),
        short_functions=sum(length <= SHORT_FUNCTION_LINES for length in functions),
        repeated_classes={
            name: where
            for name, where in sorted(classes.items(), key=lambda item: (-len(item[1]), item[0]))
            if len(where) > 1
        },
    )


# Who imports whom


def read_modules(src: Path) -> dict[str, Module]:
    """All modules of a tree, by name."""
    modules = {}
    for file in sorted(src.rglob("*.py")):
        path = file.relative_to(src)
        parts = path.with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        source = file.read_text()
        nodes = list(ast.walk(ast.parse(source, str(file))))
        modules[name] = Module(name, path.as_posix(), source, nodes)
    for module in modules.values():
        module.bound = {
            name: (origin, imported) for origin, imported, name in _imports(module) if imported
        }
    return modules


def importers_of(modules: dict[str, Module]) -> dict[str, list[str]]:
    """The source files that import each module, in order."""
    found: dict[str, dict[str, None]] = {name: {} for name in modules}
    for module in modules.values():
        if not module.is_package:
            for origin, imported, _ in _imports(module):
                target = resolved(modules, origin, imported)
                if target in modules and target != module.name:
                    found[target][module.name] = None
    return {name: list(importers) for name, importers in found.items()}


def resolved(modules: dict[str, Module], origin: str, name: str) -> str:
    """The module that an import leads to: past re-exports, where the name is defined."""
    seen = set()
    while name and origin in modules and (origin, name) not in seen:
        seen.add((origin, name))
        if name in modules[origin].bound:
            origin, name = modules[origin].bound[name]
        elif f"{origin}.{name}" in modules:
            return f"{origin}.{name}"
        else:
            break
    return origin


def _imports(module: Module) -> Iterator[tuple[str, str, str]]:
    """Every import: from which module, which name of it ("" for itself), and as what."""
    package = module.name.split(".") if module.is_package else module.name.split(".")[:-1]
    for node in module.nodes:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield alias.name, "", alias.asname or alias.name
            case ast.ImportFrom(module=origin, names=names, level=level):
                above = package[: len(package) - level + 1] if level else []
                whole = ".".join([*above, *([origin] if origin else [])])
                for alias in names:
                    yield whole, alias.name, alias.asname or alias.name


def loaded_by_name(modules: dict[str, Module], named: set[str]) -> set[str]:
    """Modules that are loaded by a name in a string."""
    for module in modules.values():
        docstrings = {id(text.value) for text in _docstrings(module.nodes)}
        named |= {
            node.value.partition(":")[0]
            for node in module.nodes
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
        }
    mains = {name for name in modules if name.rpartition(".")[2] == "__main__"}
    return {name for name in modules if name in named} | mains


def entry_points(pyproject: Path) -> set[str]:
    """Modules that commands and plug-in groups of a distribution name."""
    if not pyproject.is_file():
        return set()
    project = tomllib.loads(pyproject.read_text()).get("project", {})
    groups = [project.get("scripts", {}), *project.get("entry-points", {}).values()]
    return {place.partition(":")[0] for group in groups for place in group.values()}


# Lines


def lines_of(source: str, nodes: Sequence[ast.AST]) -> Lines:
    """What is on the lines of a file."""
    docstrings = _lines_at(_docstrings(nodes))
    imports = _lines_at(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))
    code: set[int] = set()
    signatures: set[int] = set()
    depth, begin = 0, 0  # of a signature that is open, the brackets and the first line
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
        if token.type == tokenize.NAME and token.string == "def":
            depth, begin = 0, token.start[0]
        elif begin and token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
            if token.string == ":" and depth == 0:
                signatures.update(range(begin, token.start[0] + 1))
                begin = 0
    code -= docstrings | imports
    every = len(source.splitlines())
    rest = every - len(code) - len(docstrings) - len(imports - docstrings)
    return Lines(every, len(code), len(signatures & code), len(imports), len(docstrings), rest)


def _docstrings(nodes: Sequence[ast.AST]) -> Iterator[ast.Expr]:
    """Strings that stand for themselves, of modules, classes, functions and fields."""
    for node in nodes:
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                yield node


def _lines_at(nodes: Iterable[ast.stmt]) -> set[int]:
    return {
        line for node in nodes for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.house",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("src", nargs="?", type=Path, default=SRC, help="the tree to count")
    parser.add_argument("--list", action="store_true", help="name the offenders below the table")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    if not options.src.is_dir():
        sys.exit(f"{options.src} is no folder: name one that holds Python packages")
    counted = house(options.src)
    if options.json:
        figures = {name.strip(): value for name, value in counted.figures().items()}
        whole = {"figures": figures, **msgspec.to_builtins(counted)}
        print(msgspec.json.format(msgspec.json.encode(whole), indent=1).decode())
        return
    width = max(map(len, counted.figures()))
    for name, value in counted.figures().items():
        print(f"{name:<{width}}  {value:>9,}")
    if options.list:
        print()
        print("\n".join(counted.offenders()))


if __name__ == "__main__":
    main()
