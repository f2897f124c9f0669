"""Endpoints that fail or lie: every answer is a value or RegistryUnavailable with a reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web

from shoal.base.errors import RegistryUnavailable
from shoal.registry import rpc_chain
from shoal.registry.chain import Block
from shoal.registry.rpc_chain import RpcChain
from tests.registry.stage import address

Reply = Callable[[list[dict[str, Any]]], web.Response]
SECRET = "key-of-a-paid-endpoint"


def all_results(result: Any) -> Reply:
    """The same answer to every question."""

    def reply(questions: list[dict[str, Any]]) -> web.Response:
        return web.json_response([{"id": each["id"], "result": result} for each in questions])

    return reply


def asked(reply: Reply, question: Callable[[RpcChain], Any]) -> Any:
    """What comes of a question to an endpoint that answers so."""

    async def main() -> Any:
        async def handle(request: web.Request) -> web.Response:
            questions = msgspec.json.decode(await request.read())
            if questions[0]["method"] == "eth_chainId":
                return all_results("0x1")(questions)
            return reply(questions)

        app = web.Application()
        app.router.add_post(f"/{SECRET}", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        url = f"http://user:{SECRET}@127.0.0.1:{port}/{SECRET}"
        chain = await RpcChain.open(url, request_s=2.0, fee_gwei_max=1.0)
        try:
            return await question(chain)
        finally:
            await chain.close()
            await runner.cleanup()

    return asyncio.run(main())


def head(chain: RpcChain) -> Any:
    return chain.head()


def logs(chain: RpcChain) -> Any:
    return chain.logs([address(1)], 1, 2)


def call(chain: RpcChain) -> Any:
    return chain.call(address(1), b"", Block(1, bytes(32), 0))


BLOCK = {"number": "0x5", "hash": "0x" + "11" * 32, "timestamp": "0x6"}


@pytest.mark.parametrize(
    ("reply", "question", "complaint"),
    [
        (lambda _: web.Response(status=500), head, "it answers HTTP 500"),
        (lambda _: web.Response(text="<html>"), head, "its answer is none"),
        (lambda _: web.json_response({"error": "no batches"}), head, "its answer is none"),
        (lambda _: web.json_response([]), head, "it left questions unanswered"),
        (lambda _: web.json_response([{"id": 99, "result": 1}]), head, "questions unanswered"),
        (all_results(None), head, "has no blocks"),
        (all_results({}), head, "answers what cannot be"),
        (all_results({**BLOCK, "hash": "0x11"}), head, "answers what cannot be"),
        (all_results({**BLOCK, "number": "five"}), head, "answers what cannot be"),
        (all_results(7), logs, "answers what cannot be"),
        (all_results([{"address": "0x01"}]), logs, "answers what cannot be"),
        (all_results([[]]), call, "answers what cannot be"),
        (lambda _: web.Response(body=bytes(3_000)), head, "answers more than 2000 bytes"),
    ],
)
def test_a_wrong_answer_is_said_without_what_is_secret(
    reply: Reply,
    question: Callable[[RpcChain], Any],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rpc_chain, "ANSWER_BYTES_MAX", 2_000)
    with pytest.raises(RegistryUnavailable, match=complaint) as caught:
        asked(reply, question)
    assert SECRET not in str(caught.value)


def test_a_right_answer_is_one() -> None:
    assert asked(all_results(BLOCK), head) == Block(5, b"\x11" * 32, 6)
    assert asked(all_results("0x0102"), call) == b"\x01\x02"
    assert asked(all_results([]), logs) == []
