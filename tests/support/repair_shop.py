"""Repair of one stream under test: a chain that may have gaps, neighbours, and storage."""

from __future__ import annotations

from shoal.base.ids import NodeId
from shoal.identity.message_body import Position
from shoal.kernel.effects import Effect, SetTimer
from shoal.protocols.streams.commands import FilledFromStorage, FillFromStorage
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.delivery.chain_table import ChainTable, Delivery
from shoal.protocols.streams.delivery.gap_repair import Repair
from shoal.protocols.streams.delivery.replay_buffer import RecentMessages
from shoal.protocols.streams.messages import Fill, FillDone, Heads
from shoal.protocols.streams.signed_message import Number, PlacedMessage
from tests.support.streams import ALICE, BOB, CAROL, NOW_MS, NOW_NS, STREAM, message_id, placed

CHAIN = (CAROL, 0, "c")


class Shop:
    """Repair of one stream; Alice and Bob are neighbours, Carol publishes."""

    def __init__(self, config: NodeConfig | None = None, node: NodeId | None = None) -> None:
        self.config = config or NodeConfig()
        self.table = ChainTable(self.config, NOW_MS)
        self.recent = RecentMessages(self.config)
        self.repair = Repair(STREAM, self.table, self.recent, self.config, node)
        self.now_ns = NOW_NS

    def take(self, number: int, previous: int | None) -> list[Effect]:
        """Carol's message of so many milliseconds from now was taken."""
        id = message_id(timestamp_ms=NOW_MS + number, publisher=CAROL)
        before = None if previous is None else Position(NOW_MS + previous, 0)
        self.keep(placed(id, before, f"message {number}".encode()))
        return self.repair.seen(CHAIN, self.now_ns)

    def keep(self, message: PlacedMessage) -> None:
        assert self.table.take(message)
        self.recent.add(message, self.now_ns)

    def tick(self, after_ns: int, *active: NodeId) -> tuple[list[Effect], list[Delivery]]:
        self.now_ns += after_ns
        return self.repair.tick(active or (ALICE, BOB), self.now_ns)

    def storage_says(self, *found: bytes) -> list[Effect]:
        filled = FilledFromStorage(STREAM, CAROL, 0, "c", found, True)
        return self.repair.storage_answered(filled, self.now_ns)

    def storage_gave(self, gap: FillFromStorage, last: int) -> None:
        """A page of messages up to one, which are being checked."""
        ends = gap.after, gap.upto, Position(NOW_MS + last, 0)
        filled = FilledFromStorage(STREAM, CAROL, 0, "c", (b"a page",), True, *ends)
        self.repair.storage_answered(filled, self.now_ns)

    def storage_had_nothing_of(self, gap: FillFromStorage) -> None:
        ends = gap.after, gap.upto
        filled = FilledFromStorage(STREAM, CAROL, 0, "c", (), True, *ends)
        self.repair.storage_answered(filled, self.now_ns)

    def nobody_answers(self) -> None:
        filled = FilledFromStorage(STREAM, CAROL, 0, "c", (), False)
        self.repair.storage_answered(filled, self.now_ns)

    def heads(self, number: int, peer: NodeId = ALICE) -> list[Effect]:
        head = ((CAROL, 0, "c"), (NOW_MS + number, 0))
        return self.repair.handle(peer, Heads(STREAM, (head,)), self.now_ns)


def fill(after: Number, upto: Number) -> Fill:
    """A neighbour is asked for what lies between two messages of Carol's."""
    return Fill(STREAM, CAROL, 0, "c", Position(*after), Position(*upto))


def done(found: int) -> FillDone:
    """A neighbour has sent so many."""
    return FillDone(STREAM, CAROL, 0, "c", found)


def broken_shop(config: NodeConfig | None = None, node: NodeId | None = None) -> Shop:
    """Messages 1 and 3 are there, 2 is not, and it has been waited for."""
    shop = Shop(config, node)
    shop.take(1, None)
    assert shop.take(3, 2) == [SetTimer(("repair", STREAM), shop.config.gap_wait_ns)]
    return shop


GAP = fill((NOW_MS + 1, 0), (NOW_MS + 2, 0))
FEW = NodeConfig(fill_tries=4, storage_tries=2)
