"""How much a Spark query has to do, what becomes of its drivers, and what must come of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import msgspec

from campaigns.spark_driver import POINTS, WINDOW_S, ZOMBIE
from campaigns.spark_town import KEYS, STEP_MS

ANY_TIME = "at any time"
LATER_BATCHES_MAX = 4  # a driver that dies at a point has so many batches before at most
ALIVE_S_MAX = 40.0  # a driver that dies at any time
AWAY_S_MAX = 8.0  # a node that was killed
ZOMBIES_MAX = 2  # that stand still at once: each is a JVM of more than a gigabyte


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of one driver, and of others meanwhile."""

    point: str | None = None
    """Where it dies, or stands still; None: it works to the end."""
    batches: int = 1
    """The point is reached so many batches after the one that it begins with."""
    alive_s: float = 0.0
    """If it dies at any time."""
    storage: float | None = None
    """The storage node whose log is read dies with the first batch, for so many seconds."""
    publisher: float | None = None
    """The publishing node dies with the first batch, for so many seconds."""
    subscriber: bool = False
    """The subscriber goes, and comes back when this driver has ended or stands still."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """How much there is."""

    messages: int
    batches: int
    """That the messages make, about."""

    @property
    def rows_per_batch(self) -> int:
        return max(1, self.messages // self.batches)

    @property
    def watermark_s(self) -> int:
        """A partition that changes its log stands still for a batch: what the others are ahead then
        must not make it late."""
        return self.rows_per_batch * STEP_MS * 11 // 10_000

    def expected(self) -> Counter[str]:
        """What the windows come to."""
        counts: Counter[tuple[int, int]] = Counter()
        sums: Counter[tuple[int, int]] = Counter()
        for number in range(self.messages):
            place = number * STEP_MS // 1000 // WINDOW_S * WINDOW_S, number % KEYS
            counts[place] += 1
            sums[place] += number
        return Counter(
            f"{start} k{key} {count} {sums[start, key]}" for (start, key), count in counts.items()
        )


def random_lives(rng: random.Random, kills: int) -> Iterator[Life]:
    """So many that end badly, and one that does not."""
    zombies = 0
    for _ in range(kills):
        ends = (*POINTS, ANY_TIME) if zombies == ZOMBIES_MAX else (*POINTS, ANY_TIME, ZOMBIE)
        point = rng.choice(ends)
        zombies = zombies + 1 if point == ZOMBIE else 0
        yield Life(
            point=point,
            batches=rng.randrange(LATER_BATCHES_MAX),
            alive_s=rng.uniform(0, ALIVE_S_MAX),
            storage=rng.uniform(0, AWAY_S_MAX) if rng.random() < 0.3 else None,
            publisher=rng.uniform(0, AWAY_S_MAX) if rng.random() < 0.3 else None,
            subscriber=rng.random() < 0.2,
        )
    yield Life()
