"""The checker process: compares what was published with what every subscriber got.

    python -m shoal_city.demo.checker FOLDER

Knows the journals only. Prints one JSON object; exit code 1 if anything is lost, double, or was
never published. Of alerts, storage nodes say which there are.
"""

from __future__ import annotations

import hashlib
import sys
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from shoal.base.ids import MessageId
from shoal_city.demo.message_source import reading_of

# What the publisher says it published and each subscriber says it got: one line a message.


FLUSH_LINES = 256


class Journal:
    """An append-only text file: timestamp, sequence, chain, digest of the content."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self._lines = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._file.close()

    def write(self, id: MessageId, content: str | bytes) -> None:
        """One message."""
        data = content.encode() if isinstance(content, str) else content
        digest = hashlib.blake2b(data, digest_size=8).hexdigest()
        self.note(f"{id.timestamp_ms} {id.sequence} {id.chain} {digest}")

    def note(self, line: str) -> None:
        """Anything else that fits a line."""
        self._file.write(line + "\n")
        self._lines += 1
        if self._lines % FLUSH_LINES == 0:
            self._file.flush()


def read_journal(path: Path) -> list[str]:
    """The lines of a journal; a last line without its end was cut off by a crash."""
    text = path.read_text()
    return text[: text.rfind("\n") + 1].splitlines()


PUBLISHED = "published.journal"
RECEIVED = "received-*.journal"
READINGS = "readings.journal"
"""Of each reading: when it was published, the vehicle, and the fleet's time."""
ALERTS_KEPT, ALERTS_RECEIVED = "alerts-kept.journal", "alerts-received.journal"
ALERTS = "alerts.journal"
"""Of each alert: when it came, and what it says."""


class AlertsVerdict(msgspec.Struct, frozen=True):
    """What the journals say of alerts."""

    kept: int
    delivered: int
    lost: int
    double: int
    invented: int
    delays_ms: tuple[int, ...]
    """Of alerts that begin, in order of size: from when the reading was published that made it one,
    to when the alert came."""


class Verdict(msgspec.Struct, frozen=True):
    """What the journals say."""

    published: int
    subscribers: int
    expected: int
    delivered: int
    lost: int
    double: int
    invented: int
    alerts: AlertsVerdict | None = None

    @property
    def good(self) -> bool:
        """Everything arrived, once, and nothing else."""
        wrong = self.lost or self.double or self.invented
        if self.alerts is not None:
            wrong = wrong or self.alerts.lost or self.alerts.double or self.alerts.invented
        return not wrong


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
    alerts = compare_alerts(folder) if (folder / ALERTS_KEPT).exists() else None
    return Verdict(
        len(published), len(journals), expected, delivered, lost, double, invented, alerts
    )


def compare_alerts(folder: Path) -> AlertsVerdict:
    """Read what there is of alerts."""
    kept = set(read_journal(folder / ALERTS_KEPT))
    got = read_journal(folder / ALERTS_RECEIVED)
    distinct = set(got)
    return AlertsVerdict(
        kept=len(kept),
        delivered=len(distinct & kept),
        lost=len(kept - distinct),
        double=len(got) - len(distinct),
        invented=len(distinct - kept),
        delays_ms=tuple(sorted(_delays(folder))),
    )


def _delays(folder: Path) -> list[int]:
    published_ms: dict[str, int] = {}
    for line in read_journal(folder / READINGS):
        moment, _, reading = line.partition(" ")
        published_ms.setdefault(reading, int(moment))  # some are sent twice
    delays = []
    for line in read_journal(folder / ALERTS):
        received, _, content = line.partition(" ")
        alert = msgspec.json.decode(content)
        if alert["phase"] == "begins":
            time_ms = round(datetime.fromisoformat(alert["time"]).timestamp() * 1000)
            moments = (published_ms.get(reading_of(v, time_ms)) for v in alert["vehicles"])
            (moment_ms,) = [ms for ms in moments if ms is not None][:1]
            delays.append(int(received) - moment_ms)
    return delays


def main() -> None:
    """The process."""
    verdict = compare(Path(sys.argv[1]))
    print(msgspec.json.encode(verdict).decode())
    sys.exit(0 if verdict.good else 1)


if __name__ == "__main__":
    main()
