"""What ships is what the source of the explorer gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.web_build import BUILT, SOURCE, build

pytestmark = pytest.mark.browser


def contents(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def test_the_page_that_ships_is_the_one_that_is_built(tmp_path: Path) -> None:
    build(tmp_path / "out")
    built, shipped = contents(tmp_path / "out"), contents(BUILT)
    assert list(built) == list(shipped), "run python -m scripts.web_build"
    assert [name for name in built if built[name] != shipped[name]] == []


def test_the_lock_file_names_no_registry() -> None:
    assert '"resolved"' not in (SOURCE / "package-lock.json").read_text()
