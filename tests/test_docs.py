"""Every line of the pages that promise something names tests, and they are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("guarantees.md", "threat-model.md", "security.md")
NAMED = re.compile(r"`((?:[\w./-]+/)?[\w-]+\.py)(?:::\w+)?[^`]*`")


def promises(text: str) -> list[tuple[int, str]]:
    """The rows of tables with a column of tests: line number, and what is in that column."""
    rows, column = [], None
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if not line.startswith("|"):
            column = None
        elif column is None:
            column = cells.index("test") if "test" in cells else -1
        elif column >= 0 and not set(line) <= set("|- "):
            rows.append((number, cells[column]))
    return rows


def missing(cell: str) -> list[str]:
    """Named files that are not there; a bare name is in the folder of the one before it."""
    lost, folder = [], Path()
    for name in NAMED.findall(cell):
        path = Path(name)
        if path.parent == Path():
            path = folder / path
        folder = path.parent
        if not (ROOT / path).is_file() and not any(ROOT.glob(f"tests/**/{path.name}")):
            lost.append(name)
    return lost


@pytest.mark.parametrize("page", PAGES)
def test_every_promise_names_a_test_that_is_there(page: str) -> None:
    rows = promises((ROOT / "docs" / page).read_text())
    assert len(rows) >= 10
    for number, cell in rows:
        assert NAMED.search(cell), f"docs/{page}:{number} names no test: {cell}"
        assert not missing(cell), f"docs/{page}:{number} names {missing(cell)}: not there"


def test_a_promise_without_a_test_is_found() -> None:
    text = "| what | test |\n| --- | --- |\n| a | `tests/test_docs.py` |\n| b | none |\n"
    assert promises(text) == [(3, "`tests/test_docs.py`"), (4, "none")]
    assert missing("`tests/test_docs.py`, `test_parts.py`") == []
    assert missing("`tests/test_docs.py`, `test_no_such.py`") == ["test_no_such.py"]
