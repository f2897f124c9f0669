"""A Spark query from one stream through windows into another, of which everything is killed again
and again: a far subscriber gets every row once, and none that is wrong.

    .venv/bin/python -m campaigns.spark_exactly_once           2 million messages, 30 kills
    .venv/bin/python -m campaigns.spark_exactly_once --messages 200000 --kills 8 --seed 7
    .venv/bin/python -m campaigns.spark_exactly_once --json    one object, for machines

Drivers die with their JVMs: after tasks have staged their rows, in the middle of a seal, after rows
were published and before Spark knows, or at any moment; or they stand still, a successor takes
over, and then they go on. Tasks fail, are tried again or run twice. A driver may begin with an
older checkpoint: then it ends with an error that says so, or all is exactly once all the same.
Meanwhile a storage node or the publishing node is killed and started again, or the subscriber is,
and at last other jobs write to the same outbox, more than it holds, one of which fails. What
happens, and when, follows from the seed, but for how fast processes are. A small form of it is
tests/pipeline/test_exactly_once.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from campaigns.kills import Failure
from campaigns.spark_driver import (
    IN_TASK,
    TO_FAIL,
    WINDOW_S,
    WRITE_ROWS,
    WRITES,
    ZOMBIE,
    Plan,
    beside_row,
)
from campaigns.spark_far import FarSubscriber
from campaigns.spark_lives import ANY_TIME, Life, Sizes, random_lives
from campaigns.spark_town import (
    COUNTED,
    PATIENCE_S,
    PUBLISHER,
    SAID,
    STEP_MS,
    Town,
    content,
    kill_driver,
)
from shoal.cli.terminal.progress import ProgressLine
from shoal_spark.sink import OutboxClient, parse_options

MESSAGES, KILLS, BATCHES = 2_000_000, 30, 100
LIVE = 200  # messages that are published while things happen
LOOK_S = 0.05
WATCH_S = 1.0
BACKUPS_MAX = 4  # of the checkpoint
BESIDE = "writes beside"
RESTORED_TEXT = "the checkpoint was restored from an old copy"
RESTORED, ACCEPTED = "restored", "restored, and exactly once"


class SoFar(NamedTuple):
    """How far a part of it is."""

    said: str
    fraction: float


class Campaign:
    """One run."""

    def __init__(self, folder: Path, sizes: Sizes, lives: Iterator[Life]) -> None:
        self.town = Town(folder)
        self.drivers = 0
        self.far = FarSubscriber(self.town)
        self._folder = folder
        self._sizes = sizes
        self._lives = lives
        self._done: Counter[str] = Counter()
        self._begun: list[Process] = []
        self._backups: dict[int, Path] = {}
        """Copies of the checkpoint, by the batch that they would go on with."""
        self._beside: Counter[str] = Counter()
        """Rows that other jobs have written."""

    def expected(self) -> Counter[str]:
        """All that must have come to the subscriber at the end."""
        return self._sizes.expected() + self._beside

    async def run(self) -> Counter[str]:
        """All lives; how often things were killed."""
        sizes, town = self._sizes, self.town
        with ProgressLine("signing") as line:

            def tell(signed: int) -> None:
                fraction = signed / sizes.messages
                line.update(SoFar(f"{signed} of {sizes.messages} messages", fraction))

            await asyncio.to_thread(town.fill, sizes.messages - LIVE, tell)
        async with AsyncExitStack() as stack:
            stack.callback(self._kill_drivers)
            await stack.enter_async_context(town.running())
            stack.push_async_callback(self.far.close)
            await self.far.open()
            watching = asyncio.create_task(self._watch())
            stack.callback(watching.cancel)
            publishing = asyncio.create_task(self._publish_live())
            stack.callback(publishing.cancel)
            zombies: list[Process] = []
            for life in self._lives:
                all_there = publishing.done()
                finished = await self._live(life, zombies)
                if finished and all_there:
                    break
            else:  # the last one ended before the last message
                await publishing
                await self._live(Life(), zombies)
            if not self._done[BESIDE]:
                await self._live(Life(writes=True), zombies)
            await publishing  # raises what it failed with
            await self._until_arrived(self.expected().total())
            await asyncio.to_thread(self._check_outbox)
        return self._done

    def _check_outbox(self) -> None:
        """Whatever failed or was given up, nothing of it takes room."""
        client, end_s = OutboxClient(parse_options(self._sink())), time.monotonic() + PATIENCE_S
        try:
            while (state := client.state())["waiting_parts"] and time.monotonic() < end_s:
                time.sleep(LOOK_S)
        finally:
            client.close()
        if state["size_bytes"] or state["holder"]:
            raise Failure(f"the outbox is not empty at the end: {state}")

    async def _watch(self) -> None:
        """Say how far it is, as long as it goes on."""
        with ProgressLine("killing") as line:
            while True:
                batch, batches = self._next_batch(), self._sizes.batches
                said = f"{min(batch, batches)} of {batches} batches, {self._done.total()} kills"
                said += f", {len(self.far.rows)} rows have arrived"
                line.update(SoFar(said, min(batch / batches, 1.0)))
                await asyncio.sleep(WATCH_S)

    # One driver

    async def _live(self, life: Life, zombies: list[Process]) -> bool:
        """A driver from its start to its end, or until it stands still; whether it worked to the
        end."""
        first, newest = self._next_batch(), None
        if life.restored:
            newest = self._restore(first)
            if newest is None:
                return False
        else:
            self._back_up(first)
        driver = await self._driver(life, first + life.batches)
        if life.subscriber:
            await self.far.close()
            self._done["subscriber"] += 1
        harm = asyncio.create_task(self._harm(life, driver, first))
        try:
            if newest is None:
                finished = await self._outlive(life, driver, zombies)
            else:
                finished = await self._outlive_restored(driver, newest)
        finally:
            await harm
        if finished and life.writes:
            names = WRITES[:-1]
            begin = self._writes_of(self.drivers)
            self._beside.update(beside_row(begin, x, n) for x in names for n in range(WRITE_ROWS))
            self._done[BESIDE] += len(WRITES)
        if life.subscriber:
            await self.far.open()
        # Who died at any time may not have taken over: then those before him are not refused.
        if driver not in zombies and life.point != ANY_TIME:
            await self._let_go(zombies)
        return finished

    async def _outlive(self, life: Life, driver: Process, zombies: list[Process]) -> bool:
        """Wait for what becomes of a driver; whether it worked to the end."""
        if life.point == ZOMBIE and await self._stands(driver):
            zombies.append(driver)
            self._done[ZOMBIE] += 1
            return False
        if life.point == ANY_TIME:
            with suppress(TimeoutError):
                async with asyncio.timeout(life.alive_s):
                    await driver.wait()
            kill_driver(driver)
        code, told = await ended(driver)
        if life.point == IN_TASK and code > 0 and TO_FAIL in told:
            self._done[IN_TASK] += 1
        elif code == -signal.SIGKILL:
            self._done[life.point or ""] += 1
        elif code != 0:
            raise Failure(f"a driver that was to work failed: {told}")
        return code == 0

    async def _outlive_restored(self, driver: Process, newest: Path) -> bool:
        """It has to say that its checkpoint is too old, or all of it was right."""
        code, told = await ended(driver)
        if code in (0, -signal.SIGKILL):
            self._done[ACCEPTED] += 1
            shutil.rmtree(newest)
            return code == 0
        # It says where to go on, which it has read in its checkpoint.
        if not all(words in told for words in (RESTORED_TEXT, "with startingOffsets = {")):
            raise Failure(f"a driver with an older checkpoint ended so: {told}")
        self._done[RESTORED] += 1
        shutil.rmtree(self._checkpoint)
        newest.rename(self._checkpoint)
        return False

    async def _driver(self, life: Life, batch: int) -> Process:
        self.drivers += 1
        checkpoint, name = self._checkpoint, f"driver-{self.drivers}"
        plan = Plan(
            source={
                "servers": self.town.servers,
                "stream": SAID,
                "startingOffsets": "earliest",
                "maxRowsPerTrigger": str(self._sizes.rows_per_batch),
                "patienceSeconds": str(PATIENCE_S),
            },
            sink=self._sink(),
            checkpoint=str(checkpoint),
            watermark_s=self._sizes.watermark_s,
            stands=str(self._folder / f"{name}.stands"),
            go=str(self._folder / "go"),
            point=life.point,
            batch=batch,
            attempts=life.attempts,
            writes=self._writes_of(self.drivers) if life.writes else "",
        )
        file = self._folder / f"{name}.json"
        file.write_bytes(msgspec.json.encode(plan))
        driver = await self.town.driver(file)
        self._begun.append(driver)
        return driver

    async def _stands(self, driver: Process) -> bool:
        """Whether a zombie came to where it stands still."""
        stands = self._folder / f"driver-{self.drivers}.stands"
        async with asyncio.timeout(PATIENCE_S):
            while not stands.exists() and driver.returncode is None:
                await asyncio.sleep(LOOK_S)
        return stands.exists()

    async def _let_go(self, zombies: list[Process]) -> None:
        """Those who stood still go on, and are refused."""
        if not zombies:
            return
        go = self._folder / "go"
        go.touch()
        for zombie in zombies:
            code, told = await ended(zombie)
            if code == 0 or "another driver has taken it over" not in told:
                raise Failure(f"a driver went on beside its successor, and ended so: {told}")
        zombies.clear()
        go.unlink()

    # What else happens

    async def _harm(self, life: Life, driver: Process, first: int) -> None:
        """Kill nodes when the driver has begun to work."""
        if life.storage is None and life.publisher is None:
            return
        async with asyncio.timeout(PATIENCE_S):
            while driver.returncode is None and not self._batch("offsets", first).exists():
                await asyncio.sleep(LOOK_S)
        along = self._read_along()
        for name, away_s in ((along, life.storage), (PUBLISHER, life.publisher)):
            if name is not None and away_s is not None:
                await self.town.kill(name)
                self._done["storage" if name == along else PUBLISHER] += 1
                await asyncio.sleep(away_s)
                await self.town.start(name)

    async def _publish_live(self) -> None:
        """The last messages come over the network, and one that closes all windows."""
        sizes = self._sizes
        async with self.town.visitor() as node:
            stream = await node.open_stream(SAID)
            for number in range(sizes.messages - LIVE, sizes.messages):
                while self._next_batch() < sizes.batches // 2:
                    await asyncio.sleep(LOOK_S)
                await stream.publish(content(number), partition=number % 2, durable=True)
            end_ms = sizes.messages * STEP_MS + (sizes.watermark_s + 2 * WINDOW_S) * 1000
            await stream.publish(content(sizes.messages, end_ms), partition=0, durable=True)

    async def _until_arrived(self, count: int) -> None:
        """Or until nothing more comes: then it is told what is missing."""
        had, since_s = -1, time.monotonic()
        while (have := len(self.far.rows)) < count:
            if have != had:
                had, since_s = have, time.monotonic()
            elif time.monotonic() - since_s > PATIENCE_S:
                return
            await asyncio.sleep(LOOK_S)
        await asyncio.sleep(1)  # nothing more comes

    def _sink(self) -> dict[str, str]:
        return {
            "outbox": f"http://{self.town.gateways[PUBLISHER]}",
            "stream": COUNTED,
            "token": f"file:{self._folder / 'token'}",
        }

    def _writes_of(self, driver: int) -> str:
        return f"beside {driver}"

    # The checkpoint

    def _back_up(self, batch: int) -> None:
        """Keep the checkpoint as it is, as an operator does now and then."""
        if batch not in self._backups and self._checkpoint.exists():
            backup = self._backups[batch] = self._folder / f"backup-{batch}"
            shutil.copytree(self._checkpoint, backup)
            if len(self._backups) > BACKUPS_MAX:
                shutil.rmtree(self._backups.pop(min(self._backups)))

    def _restore(self, batch: int) -> Path | None:
        """Put the oldest backup in the place of the checkpoint, which goes elsewhere; None if all
        backups are as new as that is."""
        older = [number for number in self._backups if number < batch]
        if not older:
            return None
        newest = self._folder / "newest"
        self._checkpoint.rename(newest)
        shutil.copytree(self._backups[min(older)], self._checkpoint)
        return newest

    @property
    def _checkpoint(self) -> Path:
        return self._folder / "checkpoint"

    def _batch(self, kind: str, number: int) -> Path:
        return self._checkpoint / kind / str(number)

    def _next_batch(self) -> int:
        """The batch that a driver begins with."""
        done = [int(file.name) for file in self._checkpoint.glob("commits/[0-9]*")]
        return max(done, default=-1) + 1

    def _read_along(self) -> str | None:
        """The storage node whose log the query reads."""
        planned = [int(file.name) for file in self._checkpoint.glob("offsets/[0-9]*")]
        if not planned:
            return None
        *_, last = self._batch("offsets", max(planned)).read_text().splitlines()
        return self.town.logs[json.loads(last)["p"]["0"]["log"]]

    def _kill_drivers(self) -> None:
        for driver in self._begun:
            if driver.returncode is None:
                kill_driver(driver)


async def ended(driver: Process) -> tuple[int, str]:
    """How a driver ended, and what it said."""
    out, err = await driver.communicate()
    assert driver.returncode is not None
    return driver.returncode, (out + err).decode()


def run(folder: Path, sizes: Sizes, lives: Iterable[Life]) -> dict[str, Any]:
    """What was killed, and what arrived; Failure if a row is lost, double or wrong."""
    begin_s = time.monotonic()

    async def main() -> tuple[Counter[str], Campaign]:
        campaign = Campaign(folder, sizes, iter(lives))
        return await campaign.run(), campaign

    done, campaign = asyncio.run(main())
    expected = campaign.expected()
    arrived = Counter(campaign.far.rows)
    lost, more = expected - arrived, arrived - expected
    if lost or more:
        raise Failure(
            f"of {expected.total()} rows {lost.total()} are lost, such as {list(lost)[:3]}, and"
            f" {more.total()} double or wrong, such as {list(more)[:3]}"
        )
    return {
        "campaign": "spark_exactly_once",
        "messages": sizes.messages,
        "rows": expected.total(),
        "kills": dict(sorted(done.items())),
        "drivers": campaign.drivers,
        "lost": 0,
        "double": 0,
        "seconds": round(time.monotonic() - begin_s, 1),
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--kills", type=int, default=KILLS, help="drivers that do not end well")
    parser.add_argument("--batches", type=int, default=BATCHES, help="micro-batches, about")
    parser.add_argument("--seed", type=int, default=1, help="other moments for another number")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    sizes = Sizes(messages=options.messages, batches=options.batches)
    lives = random_lives(random.Random(options.seed), options.kills)
    with tempfile.TemporaryDirectory(prefix="shoal-spark-") as folder:
        try:
            result = run(Path(folder), sizes, lives)
        except Failure as failure:
            sys.exit(f"--seed {options.seed}: {failure}")
    if options.json:
        print(json.dumps({**result, "seed": options.seed}))
        return
    for name, value in result.items():
        print(f"{name:<22}{value}")


if __name__ == "__main__":
    main()
