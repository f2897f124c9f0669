"""Every bound and interval of the DHT, with its reason."""

from __future__ import annotations

import msgspec

from shoal.base.errors import ConfigError
from shoal.base.units import KIB, MIB, MS_NS, S_NS

K = 20  # nodes of a bucket, and replicas of a value: so many do not fail within one republish
KEY_BYTES_MAX = 64  # a CID, or a hash and a few words
VALUE_BYTES_MAX = 520 * KIB  # the largest event of a topic; must not stall a link for long
VALUES_MAX = 16  # records of one key, one for each signer
FRAME_BYTES_MAX = VALUE_BYTES_MAX + 32 * KIB  # a value, and the contacts beside it
STORE_TOKEN_BYTES = 4 * KIB  # a value costs its sender one question for each of these
VALUE_OVERHEAD_BYTES = 512  # what the bookkeeping of a value costs; small ones count, too
MINUTE_NS = 60 * S_NS
HOUR_NS = 60 * MINUTE_NS


class DhtConfig(msgspec.Struct, frozen=True):
    """Settings of a DHT machine."""

    k: int = K
    """Nodes of a bucket, contacts of an answer, and replicas of a value."""

    paths: int = 3
    """A lookup goes along so many paths that share no node: one liar spoils one of them."""

    alpha: int = 2
    """Questions of one path that are under way at once."""

    call_timeout_ns: int = 4 * S_NS
    """A question has failed then, its dial included: three handshakes around the world."""

    slow_ns: int = 1_500 * MS_NS
    """Who has not answered by then is slow: a lookup goes on without it, and a value goes to one
    more node. Its answer counts all the same when it comes. Longer than a dial and an answer around
    the world, 1.2 s."""

    slow_max: int = 1024
    """Slow nodes that are remembered until they answer: they are asked, and not waited for."""

    lookup_timeout_ns: int = 60 * S_NS
    """A lookup ends with what it has."""

    hops_max: int = 32
    """Contacts that were learnt over more hops are not asked: log2 n suffices for any n here."""

    asked_max: int = 160
    """Nodes that one lookup asks: eight times the replicas."""

    lookups_max: int = 16
    """Lookups at once; more wait for their turn,"""

    waiting_max: int = 10_000
    """and above so many they fail."""

    put_lookups_max: int = 8
    """Lookups of values that are stored, at once: half of all turns are left for who fetches."""

    put_peers_max: int = 160
    """Peers that are being asked, above which no value is given to anybody: a host has 256 links
    for the DHT, and a question whose link is taken away has to be asked again."""

    survey_ns: int = 5 * MINUTE_NS
    """How long a lookup's view of its part of the space is believed; at the churn that
    republishing is made for, an eighth of the nodes has changed by then."""

    surveys_max: int = 1024
    """Parts of the space that are remembered, k nodes each: as many as 15,000 nodes make."""

    failures_max: int = 3
    """Unanswered questions in a row, after which a node leaves the table; if another is waiting
    for its place, the first one is enough."""

    ping_quiet_ns: int = MINUTE_NS
    """Who was heard of within this is not asked whether it lives, when its bucket is full."""

    ping_pause_ns: int = 15 * S_NS
    """A bucket asks one of its nodes at most in this time: a peer that sends many questions and
    finds its bucket full would cause as many."""

    prefix_bits_v4: int = 24
    prefix_bits_v6: int = 48
    """Addresses that share so many bits belong to one owner, as a rule."""

    prefix_bucket_max: int = 2
    prefix_table_max: int = 10
    """Nodes of one prefix in a bucket, and in the table. Nodes on one machine share an address:
    raise both for them."""

    value_ns: int = 24 * HOUR_NS
    """A value that its publisher has not put again expires."""

    republish_ns: int = 10 * MINUTE_NS
    """Whoever holds a value gives it to the k closest, unless another did so meanwhile. With a
    quarter of the nodes lost in each interval, 20 replicas do not all go."""

    refresh_ns: int = 10 * MINUTE_NS
    """A bucket without a lookup for so long gets one."""

    tick_ns: int = 15 * S_NS
    """How often upkeep looks for something to do."""

    republish_batch: int = 64
    """Values that one tick republishes at most."""

    join_retry_ns: int = 5 * S_NS
    """Bootstrap contacts that did not answer are tried again."""

    cache_ns: int = HOUR_NS
    """Life of a copy along the path, halved for each node beyond the k closest."""

    values_bytes_max: int = 64 * MIB
    """What is kept for others, overhead included. See values.py for who has to go."""

    crowded_part: float = 0.5
    """The k closest lie in less than this part of the space that k nodes should need: somebody
    chose places here. Honest places look like that once in a hundred times."""

    density_samples: int = 15
    """Lookups of random places from which the size of the network is estimated."""

    checks_max: int = 256
    """Signatures of values that are being checked; what comes meanwhile is refused as busy."""

    burst: int = 2000
    refill_ns: int = 2 * MS_NS
    """Questions of one peer: a lookup asks each once, a publisher of many values often. It keeps
    itself to half of the burst and four fifths of the rate (see puts.py)."""

    peers_max: int = 10_000
    """Peers whose rate is remembered."""

    def __post_init__(self) -> None:
        for name in (
            "k",
            "paths",
            "alpha",
            "hops_max",
            "asked_max",
            "lookups_max",
            "put_lookups_max",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: write 1 or more")
        if self.k > K:
            raise ConfigError(f"k is {self.k}: an answer carries {K} contacts at most")
