"""What protocol code and everything below it must not touch, checked on the text of one file.

A machine that reads a clock, a socket or a global random number runs differently each time, and
then no seed brings a failure back. Time, randomness and entropy are arguments.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.support.layers import Violation, imports_of, module_of, unit_of

PURE_TOP_UNITS = ("base", "identity", "kernel", "protocols")

BANNED_MODULES = {
    "_thread", "asyncio", "concurrent", "multiprocessing", "secrets", "select", "selectors",
    "signal", "socket", "ssl", "subprocess", "threading", "time",
}  # fmt: skip

BANNED_NAMES = {
    "datetime.date.today",
    "datetime.datetime.now",
    "datetime.datetime.today",
    "datetime.datetime.utcnow",
    "os.environ",
    "os.getenv",
    "os.getrandom",
    "os.urandom",
    "uuid.uuid1",
    "uuid.uuid4",
}

# Of these modules only the seeded generators may be named.
ALLOWED_RANDOM = {
    "random": {"Random"},
    "numpy.random": {"Generator", "PCG64", "Philox", "SeedSequence", "default_rng"},
}
# Without a seed these ask the operating system for one.
SEEDED_CALLS = {
    "random.Random", "numpy.random.PCG64", "numpy.random.Philox", "numpy.random.SeedSequence",
    "numpy.random.default_rng",
}  # fmt: skip

# The one door through which entropy comes in.
EXCEPTIONS = {"shoal/identity/entropy.py": {"os.urandom"}}


def purity_violations(path: str, source: str) -> list[Violation]:
    """Clocks, sockets, threads and global randomness in a file that must be pure."""
    if unit_of(module_of(path)).split(".")[0] not in PURE_TOP_UNITS:
        return []
    tree = ast.parse(source, path)
    allowed = EXCEPTIONS.get(path, set())
    found = {
        Violation(path, line, f"{name} is banned here: {why}")
        for name, line, why in (*_banned_imports(path, tree), *_banned_uses(path, tree))
        if name not in allowed
    }
    return sorted(found)


def _banned_imports(path: str, tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    for module, name, line in imports_of(path, tree):
        if module.split(".")[0] in BANNED_MODULES:
            yield module.split(".")[0], line, "it belongs in a driver"
        elif name == "*":
            hidden = any(banned.startswith(f"{module}.") for banned in BANNED_NAMES)
            if hidden or module in ALLOWED_RANDOM:
                yield f"{module}.*", line, "import names one by one"
        elif name is not None:
            yield from _banned_name(f"{module}.{name}", line)


def _banned_uses(path: str, tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    aliases = _aliases(tree)
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and id(node) not in inner:
            yield from _banned_name(_dotted(node, aliases), node.lineno)
        elif isinstance(node, ast.Call):
            name = _dotted(node.func, aliases)
            if name in SEEDED_CALLS and not _has_seed(node):
                yield name, node.lineno, "it has no seed"
        elif isinstance(node, ast.keyword) and node.arg == "default_factory":
            name = _dotted(node.value, aliases)
            if name in SEEDED_CALLS:
                yield name, node.lineno, "it has no seed"


def _banned_name(name: str, line: int) -> Iterator[tuple[str, int, str]]:
    for banned in BANNED_NAMES:
        if name == banned or name.startswith(f"{banned}."):
            yield banned, line, "take it as an argument"
    for module, allowed in ALLOWED_RANDOM.items():
        # The bare module is banned too: under another name its functions would not be seen.
        if name == module or name.startswith(f"{module}."):
            first = name.removeprefix(module).lstrip(".").split(".")[0]
            if first not in allowed:
                yield name, line, "take a seeded generator as an argument"


def _has_seed(call: ast.Call) -> bool:
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return bool(given) and not (isinstance(given[0], ast.Constant) and given[0].value is None)


def _aliases(tree: ast.Module) -> dict[str, str]:
    """What each imported name of the file stands for, wherever the import is."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                aliases[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return aliases


def _dotted(node: ast.expr, aliases: dict[str, str]) -> str:
    """The full name an expression stands for: with `import os as o`, o.urandom is os.urandom."""
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value, aliases)
        return f"{base}.{node.attr}" if base else ""
    return aliases.get(node.id, "") if isinstance(node, ast.Name) else ""
