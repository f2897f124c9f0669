"""How much a Spark query has to do, what becomes of its drivers, and what must come of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import msgspec

from campaigns.spark_driver import AGAIN, IN_TASK, POINTS, TWICE, WINDOW_S, ZOMBIE
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
    attempts: str | None = None
    """Its tasks are tried again, or run twice."""
    restored: bool = False
    """It begins with an older checkpoint, and has to end with an error if that cannot be right; its
    point is where it dies if it can. There is no such life while no backup is older."""
    writes: bool = False
    """Other jobs write to the same outbox meanwhile, more than it holds. Only if it does not die:
    room that a dead job holds comes back after an hour."""
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
        if rng.random() < 0.2:
            yield Life(restored=True, point=POINTS[0], batches=rng.randrange(LATER_BATCHES_MAX))
        ends = (*POINTS, ANY_TIME, IN_TASK)
        point = rng.choice(ends if zombies == ZOMBIES_MAX else (*ends, ZOMBIE))
        zombies = zombies + 1 if point == ZOMBIE else 0
        yield Life(
            point=point,
            batches=rng.randrange(LATER_BATCHES_MAX),
            alive_s=rng.uniform(0, ALIVE_S_MAX),
            storage=rng.uniform(0, AWAY_S_MAX) if rng.random() < 0.3 else None,
            publisher=rng.uniform(0, AWAY_S_MAX) if rng.random() < 0.3 else None,
            subscriber=rng.random() < 0.2,
            # A task that is tried again would not fail for good.
            attempts=rng.choice((None, TWICE) if point == IN_TASK else (None, TWICE, AGAIN)),
        )
    yield Life(writes=True)
