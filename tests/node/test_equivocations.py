"""A publisher that contradicts itself, as the application on a node hears of it."""

from __future__ import annotations

import logging

import pytest

from shoal.base.log_line_limit import LINES_MAX
from shoal.gateway.endpoints.metrics import Metrics
from shoal.identity.message_body import decode_body
from shoal.kernel.records import Equivocation
from shoal.node.node import PROOFS_MAX, Equivocations
from shoal.protocols.streams.commands import EquivocationSeen
from tests.node.network import Town, in_town, take
from tests.support.liar import make_liar
from tests.support.streams import ALICE, STREAM, body_of, flood_of, message_id
from tests.transport.recorder import until


def seen(number: int = 0) -> EquivocationSeen:
    id = message_id(number)
    one, two = (flood_of(body_of(id, content)).signed for content in (b"one", b"two"))
    return EquivocationSeen(STREAM, one, two)


def test_it_is_counted_kept_and_logged_with_both_bodies(caplog: pytest.LogCaptureFixture) -> None:
    equivocations = Equivocations()
    with caplog.at_level(logging.WARNING, "shoal.node"):
        equivocations.seen(seen())
    assert equivocations.count == 1
    assert list(equivocations.proofs) == [seen()]
    (line,) = caplog.messages
    assert STREAM in line
    assert "0x000000000000000000000000000000000000000d signed two messages" in line
    taken, refused = line.split(": ")[1].split(" is taken, ")
    assert taken != refused.removesuffix(" is not")


def test_a_publisher_fills_neither_memory_nor_the_log(caplog: pytest.LogCaptureFixture) -> None:
    equivocations = Equivocations()
    with caplog.at_level(logging.WARNING, "shoal.node"):
        for number in range(1000):
            equivocations.seen(seen(number))
    assert equivocations.count == 1000
    assert len(equivocations.proofs) == PROOFS_MAX
    assert equivocations.proofs[-1] == seen(999)
    assert len(caplog.messages) == LINES_MAX


def test_it_is_a_metric() -> None:
    metrics = Metrics(lambda: 0)
    assert b"shoal_equivocations_total 0.0" in metrics.text()
    metrics.observe(0, Equivocation(message_id(), ALICE))
    assert b"shoal_equivocations_total 1.0" in metrics.text()


def test_nodes_that_were_told_different_things_find_out_over_sockets() -> None:
    async def scenario(town: Town) -> None:
        liar, *honest = await town.move_in(4)
        stream = await liar.create_stream("/promises")
        make_liar(liar._streams, liar._key.sign)
        one, two, three = [await node.open_stream(stream.id) for node in honest]
        async with one.subscribe() as a, two.subscribe() as b, three.subscribe() as c:
            await liar.join(stream.id)
            await until(lambda: all(n.degree(stream.id) == 3 for n in town.nodes), 10)
            await stream.publish("truth")
            given = [(await take(messages, 1))[0] for messages in (a, b, c)]
            assert len({message.id for message in given}) == 1
            assert {message.content for message in given} <= {"lie", "truth"}
            await until(lambda: any(node.equivocations.count for node in honest), 10)
            (proof, *_) = [proof for node in honest for proof in node.equivocations.proofs]
            assert proof.stream == stream.id
            assert decode_body(proof.first).id == decode_body(proof.second).id == given[0].id

    in_town(scenario)
