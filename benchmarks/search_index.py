"""How fast a node's index takes in documents and answers queries.

    .venv/bin/python benchmarks/search_index.py              10,000 documents, a table
    .venv/bin/python benchmarks/search_index.py --json       one object, for machines
    ... --documents 50000 --queries 200                      other shapes

CPU time of one core, per second. Documents have 24 words of a Zipf distribution in three texts,
and three numbers; each search gives the best 20. Beside it SQLite's FTS5 in memory, written in C,
with the same words and as many hits; what it has no counterpart for is left out.

    put, replace, remove   documents, read from their JSON
    match                  standing queries met by a document that was read
    the rest               searches
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable
from random import Random

import msgspec

from shoal.protocols.search.queries.document_view import Document, document_of
from shoal.protocols.search.queries.index import Index
from shoal.protocols.search.queries.matching import matches
from shoal.protocols.search.queries.parser import parse

LIMIT = 20
VOCABULARY = 20_000
BYTES_MAX = 1 << 30
# Beside each, what FTS5 is asked; w0 is the most frequent word.
QUERIES = {
    "rare word": ("w{rare}", "w{rare}"),
    "frequent word": ("w{frequent}", "w{frequent}"),
    "word of a field": ("title:w{frequent}", "title : w{frequent}"),
    "two words": ("w{frequent} w{rare}", "w{frequent} w{rare}"),
    "one of two": ("w{frequent} OR w{rare}", "w{frequent} OR w{rare}"),
    "phrase": ('"w{frequent} w0"', '"w{frequent} w0"'),
    "prefix": ("w{rare}*", "w{rare}*"),
    "prefix of many": ("w1*", "w1*"),
    "excluded": ("w{frequent} -w0", "w{frequent} NOT w0"),
    "range": ("pm25:{low}..{high}", None),
    "word and range": ("w{frequent} pm25:>{high}", None),
    "kind and word": ("kind:event w{rare}", None),
    "everything": ("*", None),
}


def per_second(work: Callable[[], int]) -> float:
    """How often something is done in a CPU-second."""
    begin_s = time.process_time()
    done = work()
    return done / max(time.process_time() - begin_s, 1e-9)


def some_words(rng: Random, count: int) -> str:
    # A Zipf distribution: the n-th word is n times as rare as the first.
    return " ".join(f"w{int(VOCABULARY ** rng.random()) - 1}" for _ in range(count))


def contents(count: int, seed: int) -> list[dict[str, object]]:
    rng = Random(seed)
    return [
        {
            "title": some_words(rng, 6),
            "notes": [some_words(rng, 8), some_words(rng, 10)],
            "pm25": round(rng.uniform(0, 100), 1),
            "place": {"lat": rng.uniform(-90, 90), "lon": rng.uniform(-180, 180)},
        }
        for _ in range(count)
    ]


def asked(pattern: str, count: int) -> list[str]:
    rng = Random(pattern)
    queries = []
    for _ in range(count):
        low = rng.uniform(0, 90)
        values = {"rare": rng.randrange(200, 5000), "frequent": rng.randrange(1, 30)}
        queries.append(pattern.format(low=round(low, 1), high=round(low + 5, 1), **values))
    return queries


def read_document(payload: bytes) -> Document:
    return document_of("event", msgspec.json.decode(payload))


def ours(documents: list[dict[str, object]], count: int) -> dict[str, float]:
    """What the index does in a CPU-second."""
    index: Index[int] = Index(BYTES_MAX)
    payloads = [msgspec.json.encode(content) for content in documents]

    def put() -> int:
        for key, payload in enumerate(payloads):
            index.put(key, read_document(payload))
        return len(payloads)

    def remove() -> int:
        return sum(index.remove(key) for key in range(len(payloads)))

    figures = {"put": per_second(put), "replace": per_second(put)}
    figures["mebibytes that it says it takes"] = index.bytes / (1 << 20)
    for name, (pattern, _) in QUERIES.items():
        print(f"{name} ...", file=sys.stderr, flush=True)
        texts = asked(pattern, count)

        def search(texts: Iterable[str] = texts) -> int:
            return len([index.search(parse(text), LIMIT) for text in texts])

        figures[name] = per_second(search)
    standing = [parse(text) for pattern, _ in QUERIES.values() for text in asked(pattern, count)]
    read = [read_document(payload) for payload in payloads[:20]]
    figures["match"] = per_second(lambda: len([matches(q, d) for d in read for q in standing]))
    figures["remove"] = per_second(remove)
    return figures


def fts5(documents: list[dict[str, object]], count: int) -> dict[str, float]:
    """What SQLite does; nothing if it was built without FTS5."""
    database = sqlite3.connect(":memory:")
    try:
        database.execute("CREATE VIRTUAL TABLE held USING fts5(title, notes)")
    except sqlite3.OperationalError as error:
        print(f"without FTS5: {error}", file=sys.stderr)
        return {}
    rows = [(content["title"], " ".join(map(str, [*_texts(content)]))) for content in documents]

    def put() -> int:
        with database:
            database.executemany("INSERT INTO held VALUES (?, ?)", rows)
        return len(rows)

    figures = {"put": per_second(put)}
    best = f"SELECT rowid, rank FROM held WHERE held MATCH ? ORDER BY rank LIMIT {LIMIT}"
    for name, (_, pattern) in QUERIES.items():
        if pattern is not None:
            texts = asked(pattern, count)

            def search(texts: Iterable[str] = texts) -> int:
                return len([database.execute(best, (text,)).fetchall() for text in texts])

            figures[name] = per_second(search)
    return figures


def _texts(content: dict[str, object]) -> list[str]:
    notes = content["notes"]
    return [str(note) for note in notes] if isinstance(notes, list) else []


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=10_000, help="documents held (10000)")
    parser.add_argument("--queries", type=int, default=200, help="searches of each kind (200)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    print(f"{options.documents} documents ...", file=sys.stderr, flush=True)
    documents = contents(options.documents, seed=1)
    figures = {
        "index": ours(documents, options.queries),
        "fts5": fts5(documents, options.queries),
    }
    if options.json:
        print(json.dumps(figures))
        return
    print(f"{'per CPU-second':34} {'index':>10} {'FTS5':>10}")
    for name, rate in figures["index"].items():
        beside = figures["fts5"].get(name)
        print(f"{name:34} {rate:10,.0f} {'' if beside is None else f'{beside:,.0f}':>10}")


if __name__ == "__main__":
    main()
