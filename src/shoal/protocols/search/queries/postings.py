"""Which documents have which words in which fields, and how often."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from sys import maxunicode

from shoal.protocols.search.queries.documents import Text
from shoal.protocols.search.queries.footprint import ENTRY_BYTES, field_bytes, word_bytes

Posting = Mapping[int, int]
"""Documents, by their number in the index, and how often each has a word in a field."""


class Postings:
    """From words to documents. Words are kept in order too, for those that begin alike."""

    def __init__(self) -> None:
        self.bytes = 0
        """What it takes, about."""
        self._by_word: dict[str, dict[str, dict[int, int]]] = {}
        self._in_order: list[str] = []

    def add(self, number: int, texts: Iterable[Text]) -> None:
        """A document has these texts."""
        for (word, path), count in _counts(texts).items():
            by_path = self._by_word.get(word)
            if by_path is None:
                by_path = self._by_word[word] = {}
                insort(self._in_order, word)
                self.bytes += word_bytes(word)
            posting = by_path.get(path)
            if posting is None:
                posting = by_path[path] = {}
                self.bytes += field_bytes(path)
            posting[number] = count
            self.bytes += ENTRY_BYTES

    def remove(self, number: int, texts: Iterable[Text]) -> None:
        """Take out what add() put in: the same texts."""
        for word, path in _counts(texts):
            by_path = self._by_word[word]
            del by_path[path][number]
            self.bytes -= ENTRY_BYTES
            if not by_path[path]:
                del by_path[path]
                self.bytes -= field_bytes(path)
            if not by_path:
                del self._by_word[word]
                del self._in_order[bisect_left(self._in_order, word)]
                self.bytes -= word_bytes(word)

    def of_word(self, word: str, path: str | None) -> Iterator[Posting]:
        """Who has this word, in this field, or in each field that has it."""
        by_path = self._by_word.get(word)
        if by_path is None:
            return
        if path is None:
            yield from by_path.values()
        elif path in by_path:
            yield by_path[path]

    def of_prefix(self, prefix: str, path: str | None) -> Iterator[Posting]:
        """Who has a word that begins so."""
        for at in self._beginning(prefix):
            yield from self.of_word(self._in_order[at], path)

    def count_prefix(self, prefix: str) -> int:
        """How many words begin so."""
        return len(self._beginning(prefix))

    def _beginning(self, prefix: str) -> range:
        # The last character of all is in no word.
        end = bisect_left(self._in_order, prefix + chr(maxunicode))
        return range(bisect_left(self._in_order, prefix), end)


def _counts(texts: Iterable[Text]) -> Counter[tuple[str, str]]:
    return Counter((word, text.path) for text in texts for word in text.words)
