"""Compile contracts/ into the package: src/shoal/registry/compiled/NAME.json, ABI and bytecode.

python -m scripts.contract_build
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from scripts.contract_tools import vyper
from scripts.node_tools import ROOT

SOURCES = ROOT / "contracts"
COMPILED = ROOT / "src" / "shoal" / "registry" / "compiled"


def sources() -> list[Path]:
    """Every contract."""
    return sorted(SOURCES.glob("*.vy"))


def compiled_file(source: Path) -> Path:
    """Where its compiled form is kept."""
    return COMPILED / f"{source.stem}.json"


def compile_contract(source: Path) -> str:
    """The text of its compiled form."""
    command = [str(vyper()), "-f", "abi,bytecode", source.name]
    # Beside the source: the compiler's paths must not be those of one machine.
    done = subprocess.run(command, cwd=source.parent, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{source.name} does not compile:\n{done.stderr}")
    abi, bytecode = done.stdout.splitlines()
    # A line for each entry of the ABI, so that a change shows as one.
    entries = ",\n    ".join(json.dumps(entry) for entry in json.loads(abi))
    return f'{{\n  "abi": [\n    {entries}\n  ],\n  "bytecode": "{bytecode}"\n}}\n'


def main() -> None:
    """Compile all of them."""
    COMPILED.mkdir(exist_ok=True)
    for source in sources():
        compiled_file(source).write_text(compile_contract(source))
        print(f"{source.name}: {compiled_file(source).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
