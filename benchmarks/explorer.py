"""How smooth the explorer is in a browser without a GPU: 2,048 nodes and some 4,096 links.

    .venv/bin/python benchmarks/explorer.py             a table
    .venv/bin/python benchmarks/explorer.py --json      one object, for machines

A synthetic run of the lab is opened in headless Chromium, at 1,280 x 900, and used: moved, scaled,
pointed at, played, and laid out by forces. Frames are counted by requestAnimationFrame in the page,
while everything else goes on: the browser, this program and the server share the machine. The 95th
percentile and the longest of the times between two frames say how even it is.

Asked for are more than 20 frames a second during interaction.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from playwright.sync_api import Page

from tests.browser.chromium import open_chromium, open_page
from tests.browser.town import explorer_town
from tests.support.synthetic_run import SyntheticRun

NODES = 2048
WANTED_PER_S = 20
COUNT_FRAMES = """() => {
    window.frameTimes = [];
    const next = (time) => { window.frameTimes.push(time); requestAnimationFrame(next) };
    requestAnimationFrame(next);
}"""
STEPS = 60
STEP_MS = 25
PLAY_MS = 3000


class Hand:
    """What a person does to the picture."""

    def __init__(self, page: Page) -> None:
        self._page = page
        box = page.locator(".stage canvas").bounding_box()
        assert box is not None
        self._x = box["x"] + box["width"] / 2
        self._y = box["y"] + box["height"] / 2

    def move(self) -> None:
        self._page.mouse.move(self._x, self._y)
        self._page.mouse.down()
        for step in range(STEPS):
            self._page.mouse.move(self._x + 4 * (step % 20), self._y + 3 * (step % 15))
            self._page.wait_for_timeout(STEP_MS)
        self._page.mouse.up()

    def scale(self) -> None:
        self._page.mouse.move(self._x, self._y)
        for step in range(STEPS):
            self._page.mouse.wheel(0, -60 if step % 20 < 10 else 60)
            self._page.wait_for_timeout(STEP_MS)

    def point(self) -> None:
        for step in range(STEPS):
            self._page.mouse.move(self._x - 200 + 7 * step, self._y + (step * 13) % 80)
            self._page.wait_for_timeout(STEP_MS)

    def press(self, name: str) -> None:
        self._page.get_by_role("button", name=name, exact=True).click()

    def wait(self) -> None:
        self._page.wait_for_timeout(PLAY_MS)


def measured(page: Page, work: Callable[[], None]) -> dict[str, float]:
    """Frames a second while something is done."""
    before, begin_s = page.evaluate("window.frameTimes.length"), time.monotonic()
    work()
    took_s = time.monotonic() - begin_s
    times_ms = page.evaluate("from => window.frameTimes.slice(from)", before)
    gaps_ms = sorted(b - a for a, b in pairwise(times_ms)) or [took_s * 1e3]
    return {
        "frames_per_s": len(times_ms) / took_s,
        "gap_p95_ms": gaps_ms[int(0.95 * (len(gaps_ms) - 1))],
        "gap_max_ms": gaps_ms[-1],
    }


def run() -> dict[str, Any]:
    """All of it."""
    figures: dict[str, dict[str, float]] = {}
    with TemporaryDirectory() as folder:
        SyntheticRun(NODES).write(Path(folder))
        with (
            explorer_town(Path(folder), members=0) as town,
            open_chromium() as browser,
            open_page(browser) as page,
        ):
            page.goto(town.address + "/explorer/#/lab")
            page.wait_for_selector(".stage canvas")
            page.wait_for_timeout(1000)
            page.evaluate(COUNT_FRAMES)
            hand = Hand(page)
            figures["map, moved"] = measured(page, hand.move)
            figures["map, scaled"] = measured(page, hand.scale)
            figures["map, pointed at"] = measured(page, hand.point)
            hand.press("Play")
            figures["map, a message plays"] = measured(page, hand.wait)
            figures["map, a message plays, moved"] = measured(page, hand.move)
            hand.press("Force")
            figures["force, laid out"] = measured(page, hand.wait)
            figures["force, moved"] = measured(page, hand.move)
            figures["force, scaled"] = measured(page, hand.scale)
    return {"nodes": NODES, "wanted_frames_per_s": WANTED_PER_S, "figures": figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    result = run()
    if parser.parse_args().json:
        print(json.dumps(result))
        return
    print(f"{'':<30}{'frames/s':>9}{'p95 gap':>10}{'longest':>10}")
    for name, told in result["figures"].items():
        gaps = f"{told['gap_p95_ms']:>7.0f} ms{told['gap_max_ms']:>7.0f} ms"
        print(f"{name:<30}{told['frames_per_s']:>9.1f}{gaps}")


if __name__ == "__main__":
    main()
