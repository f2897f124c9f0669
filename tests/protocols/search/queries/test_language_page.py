"""Every example of docs/search-queries.md does what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from shoal.base.errors import UsageError
from shoal.protocols.search import config
from shoal.protocols.search.queries.document_view import document_of
from shoal.protocols.search.queries.index import Index
from shoal.protocols.search.queries.matching import matches
from shoal.protocols.search.queries.parser import parse
from shoal.protocols.search.queries.query import canonical

PAGE = (Path(__file__).parents[4] / "docs" / "search-queries.md").read_text()


BLOCKS = PAGE.split("```")[1::2]


def examples(block: str) -> list[list[str]]:
    """What is typed, and what stands beside it."""
    return [re.split(r"\s{3,}", line) for line in block.strip().splitlines()]


MATCHING, OTHERS, TEXTS, MISTAKES = map(examples, BLOCKS[1:])
EVENT = document_of("event", json.loads(BLOCKS[0].removeprefix("json")))


@pytest.mark.parametrize(
    ("text", "match"),
    [(typed, True) for typed, _ in MATCHING] + [(typed, False) for typed, _ in OTHERS],
)
def test_what_the_page_says_about_its_event(text: str, match: bool) -> None:
    index: Index[int] = Index()
    assert index.put(0, EVENT)
    assert matches(parse(text), EVENT) == match
    assert len(index.search(parse(text), 1)) == match


@pytest.mark.parametrize(("typed", "text"), TEXTS)
def test_what_the_page_says_about_the_one_text(typed: str, text: str) -> None:
    assert canonical(parse(typed)) == text


@pytest.mark.parametrize(("typed", "message"), MISTAKES)
def test_what_the_page_says_about_mistakes(typed: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        parse(typed)


def test_the_bounds_of_the_page_are_those_of_the_code() -> None:
    bounds = PAGE.split("**Bounds**")[1].split("\n\n")[0]
    assert [int(number) for number in re.findall(r"\d+", bounds)] == [
        config.QUERY_CHARS_MAX,
        config.QUERY_TERMS_MAX,
        config.QUERY_PREFIXES_MAX,
        config.QUERY_DEPTH_MAX,
        config.DOCUMENT_BYTES_MAX // 1024,
        config.DOCUMENT_DEPTH_MAX,
        config.DOCUMENT_VALUES_MAX,
        config.DOCUMENT_WORDS_MAX,
        config.WORD_CHARS_MAX,
        config.PATH_CHARS_MAX,
    ]
