"""Documents with a needle each, who shall find them, and who did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from random import Random
from typing import Any, get_args

import msgspec

from campaigns.search_words import Answered, NodeFigures, Refused, SearchFigures, name_of
from shoal.protocols.search.documents.document import Life
from shoal_lab.experiments.topics.figures import PerNode, over_nodes

LIVES: tuple[Life, ...] = tuple(life for life in get_args(Life) if life != "instant")
WORDS = 200  # that all documents share
WORDS_EACH = 20
MIB = 1 << 20


class Needle(msgspec.Struct, frozen=True):
    """A document, and the word that is in no other one."""

    number: int
    owner: int
    life: Life
    word: str
    content: dict[str, Any]


def make_needles(rng: Random, documents: int, nodes: int) -> list[Needle]:
    """As many of each life, spread over all nodes."""
    common = [f"common{number}" for number in range(WORDS)]
    needles = []
    for number in range(documents):
        word = f"needle{number}x{rng.getrandbits(32):08x}"
        words = [*rng.choices(common, k=WORDS_EACH), word]
        rng.shuffle(words)
        content = {"title": " ".join(words[:5]), "text": " ".join(words[5:]), "number": number}
        owner, life = rng.randrange(nodes), LIVES[number % len(LIVES)]
        needles.append(Needle(number, owner, life, word, content))
    return needles


class Hunt(msgspec.Struct, frozen=True, kw_only=True):
    """Every needle searched for once, from a node by lot."""

    processes: int
    due: int
    """Needles whose documents have to be there."""
    found: int
    found_percent: float
    missed: dict[Life, int]
    lapsing: int
    """Managed documents whose owners are dead: they go when nobody has cast them for a while."""
    lapsing_found: int
    confidence: PerNode
    """Over searches: how sure they said they were."""
    confidence_least: float
    asked: PerNode
    """Nodes, by one search."""
    nodes_believed: PerNode
    """Of the network, by whoever searched."""
    holders: float
    """Copies of a document, in the mean over all that were put."""
    first_hit_ms: PerNode
    messages: dict[str, float]
    """Of search, by what they are, for each search."""
    kib: float
    """Of all these, for each search."""
    cpu_s: PerNode
    """Of a process, in the time of the hunt."""
    memory_mib: PerNode
    """Of a process, without the interpreter, at the end of the hunt."""
    seconds: float
    wrong: list[str]
    """Hits that no honest search gives."""


class Tally:
    """The answers of one hunt."""

    def __init__(self, needles: Sequence[Needle], living: Collection[int]) -> None:
        self.living = living
        self.answers: dict[int, Answered] = {}
        self.refused: dict[int, str] = {}
        self._needles = needles

    def __len__(self) -> int:
        return len(self.answers) + len(self.refused)

    def told(self, said: Answered | Refused) -> None:
        """A search is over."""
        if isinstance(said, Refused):
            self.refused[said.document] = said.reason
        else:
            self.answers[said.document] = said

    def found(self, needle: Needle) -> bool:
        """Whether the search for it has found it."""
        answer = self.answers.get(needle.number)
        return answer is not None and name_of(needle.number) in answer.found

    def is_due(self, needle: Needle) -> bool:
        """Whether its document has to be there. What is managed goes with its owner; everything
        else is the network's, until it expires."""
        return needle.life != "managed" or needle.owner in self.living

    def wrong(self) -> list[str]:
        """Needles that were found twice, or something else instead of them; and what was not even
        searched for."""
        wrong = [f"document {number}: {reason}" for number, reason in self.refused.items()]
        for number, answer in sorted(self.answers.items()):
            if set(answer.found) - {name_of(number)} or len(answer.found) > 1:
                wrong.append(f"document {number}: found {', '.join(answer.found)}")
        return wrong

    def hunt(
        self, before: Sequence[SearchFigures], after: Sequence[SearchFigures], seconds: float
    ) -> Hunt:
        """What came of it, and what it took the processes that are in both."""
        due = [needle for needle in self._needles if self.is_due(needle)]
        lapsing = [needle for needle in self._needles if not self.is_due(needle)]
        missed = Counter(needle.life for needle in due if not self.found(needle))
        found = len(due) - missed.total()
        answers = list(self.answers.values())
        nodes = [node for worker in after for node in worker.nodes]
        messages, received = _traffic(before, after)
        searches = max(1, len(self))
        spent = {_number(worker): worker.cpu_s for worker in before}
        return Hunt(
            processes=len(after),
            due=len(due),
            found=found,
            found_percent=100 * found / max(1, len(due)),
            missed=dict(missed),
            lapsing=len(lapsing),
            lapsing_found=sum(map(self.found, lapsing)),
            confidence=over_nodes([answer.confidence for answer in answers]),
            confidence_least=min((answer.confidence for answer in answers), default=0.0),
            asked=over_nodes([answer.asked for answer in answers]),
            nodes_believed=over_nodes([answer.nodes for answer in answers]),
            holders=sum(node.held for node in nodes) / len(self._needles),
            first_hit_ms=over_nodes(
                [answer.first_ms for answer in answers if answer.first_ms is not None]
            ),
            messages={name: count / searches for name, count in messages.items()},
            kib=received / 1024 / searches,
            cpu_s=over_nodes([worker.cpu_s - spent[_number(worker)] for worker in after]),
            memory_mib=over_nodes([worker.memory_bytes / MIB for worker in after]),
            seconds=seconds,
            wrong=self.wrong(),
        )


def _number(worker: SearchFigures) -> int:
    return worker.nodes[0].number


def _traffic(
    before: Sequence[SearchFigures], after: Sequence[SearchFigures]
) -> tuple[Counter[str], int]:
    """Messages by kind, and all their bytes, that came in between."""

    def counted(nodes: list[NodeFigures]) -> Counter[str]:
        messages: Counter[str] = Counter()
        for node in nodes:
            messages.update(node.messages)
        return messages

    was, now = ([node for worker in one for node in worker.nodes] for one in (before, after))
    messages = counted(now) - counted(was)
    return messages, sum(node.bytes for node in now) - sum(node.bytes for node in was)
