"""What the package ships is what the contracts compile to."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.contract_build import COMPILED, compile_contract, compiled_file, sources


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.stem)
def test_the_compiled_contracts_are_those_of_the_sources(source: Path) -> None:
    same = compiled_file(source).read_text() == compile_contract(source)
    assert same, f"{source.name} has changed: run scripts/contracts"


def test_nothing_else_is_shipped() -> None:
    assert sorted(COMPILED.iterdir()) == [compiled_file(source) for source in sources()]
