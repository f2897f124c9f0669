"""A sensor publishes, and somebody else gets the last ten readings and whatever comes after.

./run up                                  # leave it; in another terminal, in the same folder:
.venv/bin/python examples/sensor.py
"""

import asyncio
import random

import shoal


async def main() -> None:
    async with shoal.Node.open("shoal.toml") as node:
        try:
            stream = await node.create_stream("/sensors/kallio", public=True)
        except shoal.RegistryRefused:  # from the last time
            stream = await node.open_stream("/sensors/kallio")
        for _ in range(20):
            await stream.publish({"pm25": round(random.uniform(5, 15), 1)}, durable=True)
        async with stream.subscribe(start=shoal.Last(10)) as readings:
            last = await stream.publish({"pm25": 99.9})
            async for reading in readings:
                print(f"{reading.timestamp:%T} {reading.content['pm25']:5.1f}")
                if reading.id == last:
                    break


if __name__ == "__main__":
    asyncio.run(main())
