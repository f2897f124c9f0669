"""An endpoint that answers nobody: nobody waits for those before it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from shoal.base.errors import RegistryUnavailable
from shoal.registry.block_follower import Follower
from shoal.registry.chain import Block
from shoal.registry.rpc_chain import BATCHES_MAX, JsonRpc

QUESTIONS = 50


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_questions_that_find_no_room_go_together_with_the_next_batch() -> None:
    async def main() -> None:
        rpc, answers = JsonRpc("http://127.0.0.1:1", 1.0), asyncio.Event()
        posted: list[int] = []

        async def post(questions: list[Any]) -> bytes:
            posted.append(len(questions))
            await answers.wait()
            return msgspec.json.encode([{"id": each.id, "result": "0x1"} for each in questions])

        rpc._post = post  # type: ignore[method-assign]
        asking = []
        for _ in range(QUESTIONS):
            asking.append(asyncio.create_task(rpc.ask("eth_chainId")))
            await turns()
        assert posted == [1] * BATCHES_MAX
        answers.set()
        assert await asyncio.gather(*asking) == ["0x1"] * QUESTIONS
        assert posted == [1] * BATCHES_MAX + [QUESTIONS - BATCHES_MAX]
        answers.clear()
        asking = [asyncio.create_task(rpc.ask("eth_chainId")) for _ in range(QUESTIONS * 10)]
        await turns()
        await rpc.close()
        ended = await asyncio.gather(*asking, return_exceptions=True)
        assert {type(each) for each in ended} == {asyncio.CancelledError}

    asyncio.run(main())


class SilentChain:
    """Says nothing for a while, and then that it is out of reach."""

    where = "nowhere"

    def __init__(self) -> None:
        self.asked = 0
        self.silence = asyncio.Event()

    async def head(self) -> Block:
        self.asked += 1
        await self.silence.wait()
        raise RegistryUnavailable("no answer")


def test_who_waits_for_a_poll_that_fails_is_told_and_does_not_poll() -> None:
    async def main() -> None:
        chain = SilentChain()
        follower = Follower(chain, (), 0, None, lambda changes: None)  # type: ignore[arg-type]
        polls = [asyncio.create_task(follower.poll()) for _ in range(QUESTIONS)]
        await turns()
        chain.silence.set()
        for poll in polls:
            with pytest.raises(RegistryUnavailable, match="no answer"):
                await poll
        assert chain.asked == 1
        with pytest.raises(RegistryUnavailable):
            await follower.poll()
        assert chain.asked == 2, "who comes later tries again"

    asyncio.run(main())
