"""The checker process: compares what was published with what every subscriber got.

    python -m shoal.cli.demo.checker FOLDER

Knows the journals only. Prints one JSON object; exit code 1 if anything is lost, double, or was
never published.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from shoal.cli.demo.journal import read_journal

PUBLISHED = "published.journal"
RECEIVED = "received-*.journal"


class Verdict(msgspec.Struct, frozen=True):
    """What the journals say."""

    published: int
    subscribers: int
    expected: int
    delivered: int
    lost: int
    double: int
    invented: int

    @property
    def good(self) -> bool:
        """Everything arrived, once, and nothing else."""
        return not (self.lost or self.double or self.invented)


def compare(folder: Path) -> Verdict:
    """Read all journals of a folder."""
    # Stopped before its first message, a publisher has no journal.
    published = read_journal(folder / PUBLISHED) if (folder / PUBLISHED).exists() else []
    wanted = set(published)
    delivered = lost = double = invented = 0
    journals = sorted(folder.glob(RECEIVED))
    for journal in journals:
        got = read_journal(journal)
        distinct = set(got)
        delivered += len(distinct & wanted)
        lost += len(wanted - distinct)
        double += len(got) - len(distinct)
        invented += len(distinct - wanted)
    expected = len(wanted) * len(journals)
    double += len(published) - len(wanted)
    return Verdict(len(published), len(journals), expected, delivered, lost, double, invented)


def main() -> None:
    """The process."""
    verdict = compare(Path(sys.argv[1]))
    print(msgspec.json.encode(verdict).decode())
    sys.exit(0 if verdict.good else 1)


if __name__ == "__main__":
    main()
