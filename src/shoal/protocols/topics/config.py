"""Every bound of the topics protocol, with its reason; those of descriptors are in identity."""

from __future__ import annotations

import msgspec

from shoal.base.errors import ConfigError
from shoal.base.units import KIB, MIB, MS_NS, S_NS
from shoal.identity.topics.cid import BLOCK_BYTES_MAX

MESSAGES_MAX = 256  # in one RPC: what a neighbour collects in one turn of its event loop
HEADS_MAX = 256  # childless events that one message names
NAMED_MAX = 4 * HEADS_MAX
# Events of one topic that are looked for because one neighbour named them, and that one answer
# names: none of them fills memory, or the place of what others name. The rest is named next time.
CONTACTS_MAX = 8  # children that a full node sends a joiner to
PATH_MAX = 64  # nodes from the root to a parent: a tree this deep is a mistake
SPANS_MAX = 512  # of a digest: two hours by the minute, two days by the hour, then by the day
REASON_BYTES_MAX = 256  # why a request to publish was refused: one line
RPC_BYTES_MAX = BLOCK_BYTES_MAX + 4 * KIB  # one block of any size, or many small ones

SUBSCRIPTIONS_MAX = 1024  # of one node
AWAITING_MAX = 4096  # of one topic: who waits for replicas while our own record is looked for
TOPICS_MAX = 4096  # that a node has besides those that it carries: the longest unused ones go
CARRIED_BYTES_MAX = 32 * MIB  # topics that a node carries for others: 4,000 of the usual size
CARRIED_SHARES = 4  # peers that fill that room: one that listens to all it can has 1,024 topics
REMEMBERED_MAX = 65_536  # names of events of one topic that were let go: they are not taken again
SLOW_AUTHORS_MAX = 1024  # of one topic, whose clocks are known to be slow
HEADS_IN_RECORD = 16  # the newest ones; each leads to all that it follows
PUBLISHERS_ASKED = 8  # head records of so many publishers are looked for


class TopicsConfig(msgspec.Struct, frozen=True):
    """Settings of a topics machine."""

    children_max: int = 12
    """Children of a node in one tree; who comes later is sent to one of them. Small, so that the
    root of a popular topic is not the network's bottleneck; not tiny, so that trees are flat."""

    beat_ns: int = 10 * S_NS
    """How often neighbours in a tree compare heads."""

    compare_ns: int = 200 * MS_NS
    """And so soon after something was found that neighbours may lack as well."""

    silence_ns: int = 35 * S_NS
    """A neighbour that said nothing for three beats is gone."""

    join_timeout_ns: int = 8 * S_NS
    """A join is answered by then, its dial included."""

    avoid_ns: int = 30 * S_NS
    """Who did not take us in, or led to a loop, is not asked again so soon."""

    avoid_lost_ns: int = 5 * S_NS
    """Whoever was lost may be back soon: a restart, or a link that broke."""

    search_ns: int = 10 * S_NS
    """A root that is not the author looks so often for somebody nearer to it."""

    linger_ns: int = 60 * S_NS
    """Whoever has no reason to be in a tree any more leaves it then."""

    want_timeout_ns: int = 4 * S_NS
    """An event that was asked for is asked for elsewhere."""

    want_batch: int = 64
    want_bytes: int = 128 * KIB
    """What one question is answered with: events, and their bytes."""

    want_burst: int = 200
    want_refill_ns: int = 10 * MS_NS
    """Questions of one peer: 200 at once, then 100 a second."""

    compare_burst: int = 100_000
    compare_refill_ns: int = 20_000
    """Heads that one peer has us go through, by its joins and digests: 100,000 at once, then 50,000
    a second, or 65 ms of CPU. All events of a node may be heads: 48,000 with the limit below."""

    gap_patience_ns: int = 300 * S_NS
    """An event whose predecessor nobody had for so long is told without it."""

    request_retry_ns: int = 3 * S_NS
    request_patience_ns: int = 60 * S_NS
    """A request to publish is sent again, and given up."""

    request_burst: int = 100
    request_refill_ns: int = 20 * MS_NS
    """Requests of one author that a publisher takes: 100 at once, then 50 a second."""

    spread_burst: int = 20
    spread_refill_ns: int = 200 * MS_NS
    """Requests of one topic that a node sends to all its children, because it does not know which
    of them leads to a publisher: 20 at once, then 5 a second. Each may go through the whole
    tree."""

    orphans_max: int = 64
    """Events that wait until the one they shall follow was fetched: authors can be made up, and
    each event may have half a MiB."""

    future_ms: int = 60_000
    """Events that are dated further ahead of our clock are neither published for others nor taken
    as news: their authors' clocks are wrong, or they lie."""

    news_age_ms: int = 24 * 3600 * 1000
    """What comes unasked, is dated below our floor, and is older than this is no news but somebody
    else's past: clocks are less wrong than that, and neighbours could send it again for ever."""

    requests_max: int = 10_000
    """Requests under way through one node."""

    checks_max: int = 10_000
    """Events whose signatures are being checked; more are refused as busy, and found again."""

    record_ns: int = 5 * S_NS
    """A publisher's head record is put so long after it changed."""

    sync_retry_ns: int = 2 * S_NS
    sync_patience_ns: int = 30 * S_NS
    """A named publisher that lost its memory looks for its own head record so often, and so long,
    before it publishes."""

    look_patience_ns: int = 10 * S_NS
    """Where anyone publishes, who has seen no event yet looks so long for one to follow."""

    watch_ns: int = 30 * S_NS
    """A root that is not the author looks for head records so often."""

    keep_alive_ns: int = 12 * 3600 * S_NS
    """The root puts what it holds into the DHT again: half the life of a value."""

    keep_alive_batch: int = 16
    """So many events for each beat."""

    overlap_ms: int = 600_000
    """Who continues after an event looks so far back for forks beside it."""

    events_bytes_max: int = 64 * MIB
    """Events of all topics: the oldest go first. Pinned topics stay."""

    age_max_ns: int | None = None
    """Events older than this go; None: while there is room."""

    def __post_init__(self) -> None:
        if self.children_max < 1:
            raise ConfigError(f"children_max is {self.children_max}: write 1 or more")
        if self.silence_ns <= self.beat_ns:
            raise ConfigError(
                f"silence_ns is {self.silence_ns}: it must be longer than a beat, {self.beat_ns}"
            )
