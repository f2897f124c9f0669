"""A sensor that never ends: a reading a second into a stream that everybody may read.

    ./run up                                        # leave it; in another terminal:
    .venv/bin/python examples/dashboard/sensor.py   # it prints what the page beside it needs

See docs/tutorial-dashboard.md.
"""

import math
import random
import time
from contextlib import suppress

import shoal

PATH = "/sensors/kallio"
EVERY_S = 1.0


def reading(now_s: float) -> dict[str, float]:
    """Made up: a slow wave with some noise."""
    return {"pm25": round(10 + 4 * math.sin(now_s / 20) + random.uniform(-1, 1), 1)}


def main() -> None:
    with shoal.connect() as node:
        try:
            stream = node.create_stream(PATH, public=True)
        except shoal.RegistryRefused:  # it is there from the last time
            stream = node.open_stream(PATH)
        print(f"http://127.0.0.1:8000/#stream={stream.id}", flush=True)
        while True:
            stream.publish(reading(time.time()))
            time.sleep(EVERY_S)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
