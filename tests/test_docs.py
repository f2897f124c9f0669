"""Every line of the pages that promise something names tests, and they are there; links between
pages lead somewhere; the reference is that of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import shoal
from scripts.api_reference import PAGE, reference

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


def test_the_reference_is_made_of_the_docstrings() -> None:
    page = PAGE.read_text()
    assert page == reference(), "run python -m scripts.api_reference"
    assert [name for name in shoal.__all__ if not re.search(rf"[`# ]{name}[`(\n]", page)] == []


def headings(text: str) -> set[str]:
    """The anchors of a page, as they are shown on the web."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(path: Path) -> list[str]:
    """The links of a page that lead nowhere in this repository."""
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        if not target.exists() or (anchor and anchor not in headings(target.read_text())):
            lost.append(link)
    return lost


def test_links_between_pages_lead_somewhere(tmp_path: Path) -> None:
    pages = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").glob("*.md")]
    assert {page.name: broken(page) for page in pages if broken(page)} == {}
    listed = (ROOT / "docs" / "README.md").read_text()
    assert [page.name for page in pages[2:] if f"({page.name})" not in listed] == ["README.md"]
    (tmp_path / "a.md").write_text("# One\n[x](a.md#one) [y](#two) [z](b.md)")
    assert broken(tmp_path / "a.md") == ["#two", "b.md"]
