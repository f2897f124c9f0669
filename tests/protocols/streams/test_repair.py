"""Gaps: noticed, asked for, filled by neighbours, and given up in the end."""

from __future__ import annotations

from shoal.base.ids import NodeId
from shoal.base.units import MIB, MS_NS, S_NS
from shoal.identity.stream_message import Position
from shoal.kernel.effects import Effect, Send, SetTimer
from shoal.kernel.records import GapAbandoned, GapFound, Rejected
from shoal.protocols.streams.chains import ChainTable
from shoal.protocols.streams.config import HEADS_CHAINS_MAX, HEADS_MAX, NodeConfig
from shoal.protocols.streams.duplicates import Number
from shoal.protocols.streams.history.messages import FilledFromStorage, FillFromStorage
from shoal.protocols.streams.messages import (
    Fill,
    FillDone,
    Flood,
    Heads,
)
from shoal.protocols.streams.ordering import WAITING_BYTES_MIN, Delivery
from shoal.protocols.streams.placed import PlacedMessage
from shoal.protocols.streams.recent import RecentMessages
from shoal.protocols.streams.repair import Repair
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    ME,
    NOW_MS,
    NOW_NS,
    STREAM,
    message_id,
    placed,
    sent,
)

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
    return Fill(STREAM, CAROL, 0, "c", Position(*after), Position(*upto))


def done(found: int) -> FillDone:
    return FillDone(STREAM, CAROL, 0, "c", found)


def broken_shop(config: NodeConfig | None = None, node: NodeId | None = None) -> Shop:
    """Messages 1 and 3 are there, 2 is not, and it has been waited for."""
    shop = Shop(config, node)
    shop.take(1, None)
    assert shop.take(3, 2) == [SetTimer(("repair", STREAM), shop.config.gap_wait_ns)]
    return shop


GAP = fill((NOW_MS + 1, 0), (NOW_MS + 2, 0))


def test_a_chain_without_gaps_needs_nothing() -> None:
    shop = Shop()
    assert shop.take(1, None) == shop.take(2, 1) == shop.take(3, 2) == []


def test_a_gap_waits_a_moment_and_is_then_asked_for() -> None:
    shop = broken_shop()
    early, _ = shop.tick(shop.config.gap_wait_ns - 1)
    assert sent(early) == []
    asked, _ = shop.tick(1)
    assert [message for message, _ in sent(asked)] == [GAP]


def test_what_passed_before_we_had_a_neighbour_is_asked_for_at_once() -> None:
    now = [SetTimer(("repair", STREAM), 0)]
    shop = Shop()
    assert shop.take(5, 4) == now, "no other path brings what came before"
    asked, _ = shop.tick(0)
    [(message, _)] = sent(asked, Fill)
    assert message.upto == Position(NOW_MS + 4, 0)
    other = Shop()
    assert other.heads(4) == now
    asked, _ = other.tick(0)
    assert sent(asked, Fill)


def test_a_gap_that_closed_by_itself_is_forgotten() -> None:
    shop = broken_shop()
    shop.take(2, 1)
    assert shop.tick(shop.config.gap_wait_ns) == ([], [])


def test_one_neighbour_after_the_other_is_asked() -> None:
    shop = broken_shop()
    peers = []
    for _ in range(4):
        effects, _ = shop.tick(shop.config.fill_wait_ns)
        peers += [to for _, to in sent(effects, Fill)]
    assert sorted(peers) == [(ALICE,), (ALICE,), (BOB,), (BOB,)]
    assert peers[0] != peers[1]


def test_every_neighbour_is_asked_for_every_chain_however_many_are_broken() -> None:
    for chains in range(1, 7):
        shop = Shop()
        heads = tuple(((CAROL, 0, f"c{n}"), (NOW_MS + 9, 0)) for n in range(chains))
        shop.repair.handle(ALICE, Heads(STREAM, heads), shop.now_ns)
        asked: dict[str, set[NodeId]] = {}
        for _ in range(3):
            effects, _ = shop.tick(shop.config.fill_wait_ns, ALICE, BOB, CAROL)
            for message, (peer,) in sent(effects, Fill):
                asked.setdefault(message.chain, set()).add(peer)
        assert [len(peers) for peers in asked.values()] == [3] * chains


def test_an_answer_that_did_not_help_lets_the_next_be_asked_at_once() -> None:
    shop = broken_shop()
    asked, _ = shop.tick(shop.config.gap_wait_ns)
    [(_, (peer,))] = sent(asked, Fill)
    shop.repair.handle(peer, done(0), shop.now_ns)
    again, _ = shop.tick(1 * MS_NS)
    [(_, (other,))] = sent(again, Fill)
    assert other != peer


def test_an_answer_that_nobody_asked_for_is_counted() -> None:
    shop = broken_shop()
    assert shop.repair.handle(ALICE, done(1), NOW_NS) == [Rejected(ALICE, "unasked-fill")]


def test_after_so_many_tries_the_gap_is_given_up_and_what_waited_is_delivered() -> None:
    shop = broken_shop(NodeConfig(fill_tries=2))
    for _ in range(2):
        asked, _ = shop.tick(shop.config.fill_wait_ns)
        assert sent(asked, Fill)
    effects, _ = shop.tick(shop.config.fill_wait_ns)
    assert effects == [GapAbandoned(STREAM, CAROL, "c")]
    assert shop.table.gaps(CHAIN) == []
    assert shop.tick(shop.config.fill_wait_ns) == ([], [])


def test_a_neighbour_that_says_to_have_sent_it_and_has_not_is_believed_so_often() -> None:
    shop = broken_shop(NodeConfig(fill_tries=3))
    for _ in range(3):
        asked, _ = shop.tick(shop.config.fill_wait_ns)
        [(_, (peer,))] = sent(asked, Fill)
        shop.repair.handle(peer, done(1), shop.now_ns)
    effects, _ = shop.tick(shop.config.repair_tick_ns)
    assert effects[0] == GapAbandoned(STREAM, CAROL, "c")


def test_each_step_forward_begins_anew() -> None:
    shop = Shop(NodeConfig(fill_tries=2))
    shop.take(1, None)
    shop.take(9, 8)
    for number in (2, 3, 4):
        asked, _ = shop.tick(shop.config.fill_wait_ns)
        assert sent(asked, Fill)
        shop.take(number, number - 1)
    for _ in range(2):
        asked, _ = shop.tick(shop.config.fill_wait_ns)
        [(message, _)] = sent(asked, Fill)
        assert message.after == Position(NOW_MS + 4, 0)
    effects, _ = shop.tick(shop.config.fill_wait_ns)
    assert effects[0] == GapAbandoned(STREAM, CAROL, "c")


# Storage

STORED = FillFromStorage(STREAM, CAROL, 0, "c", GAP.after, GAP.upto)
FEW = NodeConfig(fill_tries=4, storage_tries=2)


def test_storage_is_asked_once_when_neighbours_have_not_helped() -> None:
    shop = broken_shop(FEW, ME)
    kinds = []
    for _ in range(4):
        asked, _ = shop.tick(shop.config.fill_wait_ns)
        kinds.append([type(message) for message, _ in sent(asked)])
        assert sent(asked, FillFromStorage) in ([], [(STORED, (ME,))])
    assert kinds == [[Fill], [Fill], [FillFromStorage, Fill], [Fill]]


def test_without_neighbours_storage_is_asked_at_once() -> None:
    shop = broken_shop(FEW, ME)
    shop.now_ns += shop.config.gap_wait_ns
    effects, _ = shop.repair.tick((), shop.now_ns)
    assert sent(effects) == [(STORED, (ME,))]
    assert GapFound(STREAM, CAROL, "c") in effects


def exhausted_shop() -> Shop:
    """All neighbours were asked in vain, and storage was asked meanwhile."""
    shop = broken_shop(FEW, ME)
    for _ in range(4):
        shop.tick(shop.config.fill_wait_ns)
    return shop


def test_a_gap_is_given_up_when_storage_has_nothing_either() -> None:
    shop = exhausted_shop()
    effects, _ = shop.tick(shop.config.fill_wait_ns)
    assert effects == [SetTimer(("repair", STREAM), shop.config.repair_tick_ns)], "it waits"
    assert shop.storage_says() == [SetTimer(("repair", STREAM), shop.config.repair_tick_ns)]
    effects, _ = shop.tick(shop.config.repair_tick_ns)
    assert effects == [GapAbandoned(STREAM, CAROL, "c")]
    assert shop.storage_says() == [], "nobody waits for it any more"


def test_a_gap_is_given_up_when_storage_takes_too_long() -> None:
    shop = exhausted_shop()  # storage was asked with the third of four questions
    effects, _ = shop.tick(shop.config.storage_wait_ns - FEW.fill_wait_ns - 1)
    assert GapAbandoned(STREAM, CAROL, "c") not in effects
    effects, _ = shop.tick(1)
    assert effects == [GapAbandoned(STREAM, CAROL, "c")]


def test_storage_is_asked_again_while_there_is_time_if_nobody_answered() -> None:
    shop = exhausted_shop()
    begin_ns = shop.now_ns - FEW.fill_wait_ns
    asked = 0
    while True:
        shop.nobody_answers()
        effects, _ = shop.tick(shop.config.fill_wait_ns)
        if GapAbandoned(STREAM, CAROL, "c") in effects:
            break
        asked += len(sent(effects, FillFromStorage))
    assert shop.now_ns - begin_ns == shop.config.storage_wait_ns
    assert asked == shop.config.storage_wait_ns // shop.config.fill_wait_ns - 2


def test_what_storage_found_is_waited_for_until_it_was_checked() -> None:
    shop = exhausted_shop()
    shop.storage_says(b"message 2")
    effects, _ = shop.tick(shop.config.fill_wait_ns)
    assert effects == [SetTimer(("repair", STREAM), shop.config.repair_tick_ns)]
    shop.take(2, 1)
    assert shop.tick(shop.config.repair_tick_ns) == ([], [])


def test_storage_is_asked_again_for_the_rest_of_what_it_had() -> None:
    shop = Shop(FEW, ME)
    shop.take(1, None)
    shop.take(9, 8)
    shop.now_ns += shop.config.gap_wait_ns
    for number in (1, 2, 3):
        effects, _ = shop.repair.tick((), shop.now_ns)
        [(message, _)] = sent(effects, FillFromStorage)
        assert message.after == Position(NOW_MS + number, 0)
        shop.storage_says(b"the next one")
        shop.take(number + 1, number)


def asked_of(effects: list[Effect]) -> list[type]:
    return [type(message) for message, _ in sent(effects)]


def given_shop() -> tuple[Shop, FillFromStorage]:
    """Messages 2 to 8 are missing, neighbours had none of them, and storage was asked."""
    shop = Shop(FEW, ME)
    shop.take(1, None)
    shop.take(9, 8)
    while True:
        effects, _ = shop.tick(shop.config.fill_wait_ns)
        for gap, _ in sent(effects, FillFromStorage):
            return shop, gap


def test_while_storage_gives_what_neighbours_lack_it_alone_is_asked_and_at_once() -> None:
    shop, gap = given_shop()
    for number in (2, 4, 6):
        shop.storage_gave(gap, last=number + 1)
        shop.take(number, number - 1)
        effects, _ = shop.tick(shop.config.repair_tick_ns)
        assert asked_of(effects) == [], "the rest of the page is being checked"
        assert shop.take(number + 1, number) == [SetTimer(("repair", STREAM), 0)]
        effects, _ = shop.tick(0)
        assert asked_of(effects) == [FillFromStorage]
        [(gap, _)] = sent(effects, FillFromStorage)
        assert gap.after == Position(NOW_MS + number + 1, 0)
        effects, _ = shop.tick(shop.config.fill_wait_ns)
        assert asked_of(effects) == [], "its answer is on the way"


def test_if_storage_has_no_more_all_are_asked_for_the_rest_and_it_is_given_up() -> None:
    shop, gap = given_shop()
    shop.storage_gave(gap, last=2)
    shop.take(2, 1)
    effects, _ = shop.tick(0)
    [(gap, _)] = sent(effects, FillFromStorage)
    shop.storage_had_nothing_of(gap)
    kinds = [asked_of(shop.tick(shop.config.fill_wait_ns)[0]) for _ in range(2)]
    assert kinds == [[Fill], [Fill]]
    effects, _ = shop.tick(shop.config.fill_wait_ns)
    assert effects == [GapAbandoned(STREAM, CAROL, "c")]


def test_what_storage_gives_and_is_not_taken_does_not_keep_a_gap_open() -> None:
    shop, gap = given_shop()
    shop.storage_gave(gap, last=5)
    begin_ns = shop.now_ns
    effects: list[Effect] = []
    while GapAbandoned(STREAM, CAROL, "c") not in effects:
        effects, _ = shop.tick(shop.config.fill_wait_ns)
        for gap, _ in sent(effects, FillFromStorage):
            shop.storage_gave(gap, last=5)
        assert shop.now_ns - begin_ns < 2 * shop.config.storage_wait_ns


def test_a_gap_that_too_much_waits_behind_is_given_up_and_said_to_be_one() -> None:
    shop = Shop(NodeConfig(waiting_bytes_per_chain_max=3 * WAITING_BYTES_MIN + 100))
    shop.take(1, None)
    given: list[Delivery] = []
    effects: list[Effect] = []
    for number in (3, 4, 5, 6):
        id = message_id(timestamp_ms=NOW_MS + number, publisher=CAROL)
        message = placed(id, Position(NOW_MS + number - 1, 0), b"message")
        assert not given
        assert not effects
        shop.keep(message)
        assert shop.table.ready(Delivery(message, 1, 0)) == []
        effects, given = shop.repair.relieve(CHAIN)
    assert effects == [GapAbandoned(STREAM, CAROL, "c")]
    assert [(d.message.number[0] - NOW_MS, d.gap_before) for d in given] == [
        (3, True),
        (4, False),
        (5, False),
        (6, False),
    ]
    assert shop.table.gaps(CHAIN) == [], "nobody is asked for it any more"


def test_what_waits_behind_an_old_copy_is_let_go_too() -> None:
    """Two copies from long before our time, and then what is new: nothing is held for ever."""
    config = NodeConfig(recent_ns=50 * MS_NS, waiting_bytes_per_chain_max=2 * WAITING_BYTES_MIN)
    shop = Shop(config)
    given: list[int] = []
    for number, previous in ((-90, -91), (-70, -71), (5, 4), (6, 5)):
        id = message_id(timestamp_ms=NOW_MS + number, publisher=CAROL)
        message = placed(id, Position(NOW_MS + previous, 0), b"message")
        shop.keep(message)
        ready = shop.table.ready(Delivery(message, 1, 0)) + shop.repair.relieve(CHAIN)[1]
        given += [each.message.number[0] - NOW_MS for each in ready]
    assert given == [-90, -70, 5, 6]


def test_what_waits_in_all_chains_of_a_stream_is_bounded_too() -> None:
    shop = Shop(NodeConfig(waiting_bytes_max=3 * WAITING_BYTES_MIN + 100))
    abandoned = []
    for number in range(6):
        id = message_id(chain=f"c{number}", timestamp_ms=NOW_MS + 5, publisher=CAROL)
        message = placed(id, Position(NOW_MS + 4, 0), b"message")
        shop.keep(message)
        shop.table.ready(Delivery(message, 1, 0))
        abandoned.append(len(shop.repair.relieve(message.chain)[1]))
    assert abandoned == [0, 0, 0, 1, 1, 1]


def test_heads_tell_of_a_last_message_that_was_missed() -> None:
    shop = Shop()
    shop.take(1, None)
    assert shop.heads(1) == []
    assert shop.heads(4)
    effects, _ = shop.tick(shop.config.gap_wait_ns)
    assert sent(effects)[0][0] == fill((NOW_MS + 1, 0), (NOW_MS + 4, 0))


def test_heads_tell_of_a_chain_that_was_missed_altogether() -> None:
    shop = Shop()
    shop.heads(4)
    effects, _ = shop.tick(shop.config.gap_wait_ns)
    assert sent(effects)[0][0].upto == Position(NOW_MS + 4, 0)


def test_heads_from_before_our_time_mean_nothing() -> None:
    assert Shop().heads(-1) == []


def test_heads_of_what_nobody_would_take_yet_mean_nothing() -> None:
    shop = Shop()
    assert shop.heads(shop.config.future_ns // MS_NS + 1) == []


def test_what_only_heads_told_of_is_not_taken_for_seen_when_it_is_given_up() -> None:
    # Else one neighbour that lies would silence a publisher.
    shop = Shop(NodeConfig(fill_tries=2))
    shop.take(1, None)
    shop.heads(50_000)
    effects: list[Effect] = []
    while GapAbandoned(STREAM, CAROL, "c") not in effects:
        effects, _ = shop.tick(shop.config.fill_wait_ns)
    assert shop.table.seen(CHAIN, (NOW_MS + 2, 0)) is False
    shop.take(2, 1)
    assert shop.table.gaps(CHAIN) == []


def test_a_new_neighbour_is_asked_for_what_the_others_did_not_have() -> None:
    shop = broken_shop(FEW, ME)
    for _ in range(FEW.fill_tries):
        assert sent(shop.tick(shop.config.fill_wait_ns)[0], Fill)
    assert not sent(shop.tick(shop.config.fill_wait_ns)[0], Fill)
    shop.repair.greet((CAROL,), shop.now_ns)
    asked = [sent(shop.tick(shop.config.fill_wait_ns, CAROL)[0], Fill) for _ in range(3)]
    assert [bool(fills) for fills in asked] == [True, True, False]


def test_neighbours_that_come_and_go_do_not_keep_a_gap_open() -> None:
    shop = broken_shop(FEW, ME)
    waited_ns = 0
    effects: list[Effect] = []
    while GapAbandoned(STREAM, CAROL, "c") not in effects:
        shop.repair.greet((CAROL,), shop.now_ns)
        effects, _ = shop.tick(shop.config.fill_wait_ns)
        waited_ns += shop.config.fill_wait_ns
        assert waited_ns < 2 * shop.config.storage_wait_ns


def test_a_neighbour_gets_what_we_have_of_a_range_and_a_word_at_the_end() -> None:
    shop = Shop()
    for number in range(1, 6):
        shop.take(number, number - 1 or None)
    effects = shop.repair.handle(BOB, fill((NOW_MS + 1, 0), (NOW_MS + 3, 0)), NOW_NS)
    bodies = [message.signed for message, to in sent(effects, Flood) if to == (BOB,)]
    assert bodies == [b"message 2", b"message 3"]
    assert effects[-1] == Send(done(2), (BOB,))


def test_an_answer_is_bounded_in_bytes() -> None:
    shop = Shop(NodeConfig(fill_bytes_max=20))
    for number in range(1, 6):
        shop.take(number, number - 1 or None)
    effects = shop.repair.handle(BOB, fill((0, 0), (NOW_MS + 9, 0)), NOW_NS)
    assert len(sent(effects, Flood)) == 2


def test_a_neighbour_cannot_ask_without_end() -> None:
    shop = Shop(NodeConfig(fill_burst=3))
    answers = [shop.repair.handle(BOB, GAP, NOW_NS) for _ in range(4)]
    assert answers[-1] == [Rejected(BOB, "too-many-fills")]
    assert answers[0] == [Send(done(0), (BOB,))]


def test_what_is_kept_for_neighbours_is_bounded_in_bytes_and_age() -> None:
    shop = Shop(NodeConfig(recent_bytes_max=100, recent_ns=S_NS))
    for number in range(10):
        shop.keep(placed(message_id(timestamp_ms=number, publisher=CAROL), signed=bytes(30)))
    assert len(shop.recent.between(CHAIN, (-1, 0), (99, 0))) == 3
    shop.now_ns += 2 * S_NS
    shop.keep(placed(message_id(timestamp_ms=50, publisher=CAROL), signed=bytes(30)))
    assert len(shop.recent.between(CHAIN, (-1, 0), (99, 0))) == 1


def many_chains(count: int) -> Shop:
    """Carol has published one message in each of so many chains, a millisecond apart."""
    shop = Shop(NodeConfig(recent_bytes_max=64 * MIB))
    for number in range(count):
        shop.keep(placed(message_id(chain=f"c{number}", timestamp_ms=NOW_MS + number)))
    return shop


def told(effects: list[Effect]) -> list[list[Number]]:
    return [[number for _, number in heads.chains] for heads, _ in sent(effects, Heads)]


def test_heads_name_no_more_chains_than_a_neighbour_takes_and_the_newest_of_them() -> None:
    greeting = told(many_chains(HEADS_CHAINS_MAX + 10).repair.greet((BOB,), NOW_NS))
    assert [len(numbers) for numbers in greeting] == [HEADS_MAX] * (HEADS_CHAINS_MAX // HEADS_MAX)
    assert min(number for numbers in greeting for number in numbers) == (NOW_MS + 10, 0)


def test_more_chains_than_fit_one_message_are_told_in_several() -> None:
    shop = many_chains(2 * HEADS_MAX + 10)
    for effects in (
        shop.repair.greet((BOB,), NOW_NS),
        shop.repair.tell_quiet((BOB,), NOW_NS + 2 * shop.config.heads_ns),
    ):
        numbers = told(effects)
        assert [len(some) for some in numbers] == [HEADS_MAX, HEADS_MAX, 10]
        assert len({number for some in numbers for number in some}) == 2 * HEADS_MAX + 10


def test_quiet_chains_that_are_too_many_at_once_are_told_the_next_time() -> None:
    shop = many_chains(HEADS_CHAINS_MAX + 10)
    quiet_ns = NOW_NS + 2 * shop.config.heads_ns
    first, second, third = (told(shop.repair.tell_quiet((BOB,), quiet_ns)) for _ in range(3))
    assert sum(map(len, first)) == HEADS_CHAINS_MAX
    assert [len(numbers) for numbers in second] == [10]
    assert third == []


def test_heads_name_each_fresh_chain_whole_or_not() -> None:
    shop = Shop()
    shop.table.take(placed(message_id(chain="whole", timestamp_ms=NOW_MS)))
    shop.table.take(
        placed(message_id(chain="broken", timestamp_ms=NOW_MS), Position(NOW_MS - 1, 0))
    )
    assert [chain[2] for chain, _ in shop.table.heads(NOW_NS)] == ["whole", "broken"]
    assert len(shop.table.heads(NOW_NS + shop.config.freshness_ns)) == 2
    assert shop.table.heads(NOW_NS + shop.config.freshness_ns + MS_NS) == []


def test_chains_whose_newest_message_came_a_while_ago_are_quiet() -> None:
    shop = Shop()
    for number in range(6):
        shop.now_ns = NOW_NS + number * S_NS
        shop.keep(placed(message_id(chain=f"c{number % 4}", timestamp_ms=NOW_MS + number + 1)))

    def quiet(now_s: int) -> list[str]:
        told = shop.repair.tell_quiet((BOB,), NOW_NS + now_s * S_NS + shop.config.heads_ns)
        return [chain[2] for heads, _ in sent(told, Heads) for chain, _ in heads.chains]

    assert quiet(3) == ["c2"]  # c0 and c1 went on
    assert quiet(9) == ["c1", "c0", "c3"]
    assert quiet(9) == []


def test_a_quiet_chain_is_told_also_if_it_ended_before_our_time() -> None:
    # By our clock, that is: a publisher's may be behind it.
    shop = Shop()
    for number, previous in ((-5, -6), (-3, -4)):
        shop.take(number, previous)
    told = sent(shop.repair.tell_quiet((ALICE,), NOW_NS + 2 * shop.config.heads_ns), Heads)
    assert [at for heads, _ in told for _, at in heads.chains] == [(NOW_MS - 3, 0)]


def test_a_chain_that_goes_quiet_is_told_once() -> None:
    shop = Shop()
    heads_ns = shop.config.heads_ns
    shop.take(1, None)
    told = [shop.repair.tell_quiet((ALICE,), NOW_NS + n * heads_ns // 2) for n in range(8)]
    assert [len(sent(effects, Heads)) for effects in told].count(1) == 1
    assert sent(shop.repair.greet((BOB,), NOW_NS), Heads)


def test_a_chain_that_goes_quiet_is_told_however_late_the_timer_is() -> None:
    shop = Shop()
    late_ns = shop.config.heads_ns + 100 * MS_NS
    shop.repair.tell_quiet((ALICE,), NOW_NS + shop.config.heads_ns - 50 * MS_NS)
    shop.take(1, None)
    told = [shop.repair.tell_quiet((ALICE,), NOW_NS + n * late_ns) for n in range(1, 8)]
    assert [len(sent(effects, Heads)) for effects in told].count(1) == 1


def test_what_storage_says_of_one_gap_is_not_taken_for_the_next() -> None:
    shop = Shop(node=ME)
    shop.take(1, 0)
    shop.take(3, 2)
    shop.now_ns += shop.config.gap_wait_ns
    effects, _ = shop.repair.tick((), shop.now_ns)
    [(first, _)] = sent(effects, FillFromStorage)
    shop.take(2, 1)  # it came over another path, while storage was asked
    shop.take(6, 5)
    shop.now_ns += shop.config.gap_wait_ns
    effects, _ = shop.repair.tick((), shop.now_ns)
    [(second, _)] = sent(effects, FillFromStorage)
    shop.storage_had_nothing_of(first)
    effects, _ = shop.repair.tick((), shop.now_ns + shop.config.repair_tick_ns)
    assert GapAbandoned(STREAM, CAROL, "c") not in effects, "storage was not heard yet"
    shop.storage_had_nothing_of(second)
    effects, _ = shop.repair.tick((), shop.now_ns + shop.config.repair_tick_ns)
    assert GapAbandoned(STREAM, CAROL, "c") in effects


def test_a_neighbour_that_makes_up_chains_does_not_keep_real_gaps_from_being_noticed() -> None:
    """A message that waits behind a gap of which nobody knows would wait for ever."""
    shop = Shop(NodeConfig(broken_max=10))
    made_up = tuple(((ALICE, 0, f"c{n}"), (NOW_MS + 5, 0)) for n in range(50))
    shop.repair.heads(ALICE, Heads(STREAM, made_up), shop.now_ns)
    shop.take(1, 0)
    shop.take(3, 2)  # and then the chain is quiet
    effects, _ = shop.tick(shop.config.gap_wait_ns)
    asked = [message.chain for message, _ in sent(effects, Fill)]
    assert "c" in asked
    assert len(asked) <= 10
