"""Every bound and interval of search, with its reason."""

from __future__ import annotations

import msgspec

from shoal.base.errors import ConfigError
from shoal.base.units import KIB, MIB, MS_NS, S_NS

LOCATIONS_MIN = 2  # with one, every crash nearby would cut a node off


class SearchConfig(msgspec.Struct, frozen=True):
    """Settings of a search machine."""

    locations: int = 3
    """Places on the circle, two neighbours each; the thesis recommends three at least."""

    locations_max: int = 32
    """An idle node with much room adds some, up to here."""

    beat_ns: int = 5 * S_NS
    """Pings are so far apart; everybody has to keep to it, for the measurement."""

    quick_beat_ns: int = S_NS
    """In small networks they are this far apart: they grow fast, and one that was started a minute
    ago should know how large it is."""

    quick_nodes: int = 64
    """Networks of fewer nodes are small."""

    pings_missed_max: int = 3
    """A neighbour that was silent for more is gone."""

    join_ns: int = 20 * S_NS
    """A SplitEdge is answered within this or lost: 50 hops around the world, and four dials."""

    found_ns: int = 10 * S_NS
    """A bootstrap node waits this long to be let in by the others before it begins a network: a
    dial that times out, a walk and a dial back."""

    late_ns: int = 60 * S_NS
    """Whoever answers it later than that is refused."""

    split_ns: int = 15 * S_NS
    """Our slave has gone to the newcomer by then, or will not: two dials that time out."""

    leave_ns: int = 10 * S_NS
    """A master takes a leaver out within this, or is asked again."""

    leave_tries: int = 6
    """After so many we go without: the others find holes. Where many neighbours leave at once, they
    go one after the other from the top, half a second each: a minute is enough for a hundred."""

    walk_burst: int = 512
    """SplitEdge messages that one peer may bring at once,"""

    walk_refill_ns: int = 10 * MS_NS
    """and one more in each of these. In a small network that is flooded with newcomers, walks of 20
    hops pass the same few edges again and again; each is a few hundred bytes."""

    checks_max: int = 1024
    """Signatures under way; more are not begun. Bubbles come in bursts: all that one read of a link
    brings is here at once."""

    acquaintances_max: int = 64
    """Addresses that we remember of nodes seen lately: whoever lost all neighbours asks them."""

    peers_max: int = 4096
    """Peers whose rates are remembered."""

    clients_max: int = 64
    """Whoever searches through us without a place of its own."""

    user_connections_max: int = 256
    """Connections of applications, on all links,"""

    user_connections_peer_max: int = 32
    """and those that one peer may open."""

    confidence: float = 0.99
    """Data is cast so that a question of equal cost finds it with this probability."""

    split: int = 2
    """Neighbours among which a bubble is divided; more would let queues grow at once."""

    bubble_ns: int = 60 * S_NS
    """A bubble of ours is under way for so long at most,"""

    bubble_ns_max: int = 10 * 60 * S_NS
    """and one of others for this: clocks differ."""

    bubbles_max: int = 20_000
    """Bubbles that are remembered, so that they are not handled twice."""

    routes_max: int = 10_000
    """Ways back that are remembered,"""

    answers_max: int = 1024
    """and answers to one bubble that are passed on,"""

    answer_bytes_max: int = 4 * MIB
    """and their bytes: a question costs who asks it a few hundred."""

    answers_remembered_max: int = 100_000
    """Answers of all bubbles, so that none is passed on twice: about 15 MiB."""

    answer_ns: int = 3 * S_NS
    """Answers to a slice are back by then: two times 15 hops of 100 ms."""

    origin_burst: int = 512
    """Bubbles of one origin that are taken at once; large ones count for several,"""

    origin_refill_ns: int = 20 * MS_NS
    """and one more in each of these. Who has more to say keeps to three quarters of it."""

    puts_max: int = 10_000
    """Documents of our own that wait until their turn comes: ten minutes' worth."""

    bringer_burst: int = 4096
    """Parts of bubbles that one peer may bring at once, good or bad,"""

    bringer_refill_ns: int = 500_000
    """and one more in each of these: a fifth of a core for their signatures."""

    sent_bytes_max: int = 1 * MIB
    """Parts of bubbles that are remembered for each edge, in case that it breaks."""

    watch_ns: int = 30 * 60 * S_NS
    """A standing query is forgotten after this, and cast again after half of it."""

    sightings_max: int = 4096
    """Documents that a standing query remembers to have told."""

    upload_bytes_s: float | None = None
    """What may be sent in a second; None: as much as the links take."""

    download_bytes_s: float | None = None
    """What may come in; None: as much as may be sent."""

    standard_bytes_s: float = 128 * KIB
    """Who can send and receive so much has `locations` places; others in proportion, if they say
    what they can."""

    upload_burst_ns: int = 100 * MS_NS
    """What an idle line sends at once."""

    upload_queue_bytes: int = 4 * MIB
    """What may wait for its turn."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if not LOCATIONS_MIN <= self.locations <= self.locations_max:
            raise ConfigError(
                f"locations {self.locations}: write {LOCATIONS_MIN} to {self.locations_max}"
            )
        if not 0 < self.confidence < 1:
            raise ConfigError(f"confidence {self.confidence}: write a part of one, as in 0.99")
        if self.download_bytes_s is not None and self.download_bytes_s <= 0:
            raise ConfigError(f"download_bytes_s {self.download_bytes_s}: write more than 0")
        if self.split < 1 or self.beat_ns < 1:
            raise ConfigError(f"split {self.split}, beat_ns {self.beat_ns}: write 1 or more")

    @property
    def silent_ns(self) -> int:
        """A neighbour that was not heard of for so long is gone."""
        return (self.pings_missed_max + 1) * self.beat_ns


# How much a message of the search protocol may carry, with the reason for each bound.


INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1  # the thesis' integers, unless noted
UINT32_MAX = 2**32 - 1
HOPS_UNKNOWN = INT32_MAX  # of a SplitEdge whose sender does not know the size of the network

PAYLOAD_BYTES_MAX = 64 * KIB  # of a bubble: it is copied to thousands of nodes
MATCH_ITEMS_MAX = 64  # answers in one message; more go into the next one
ITEM_BYTES_MAX = PAYLOAD_BYTES_MAX + 1 * KIB  # a payload, and what proves whose it is
USER_DATA_BYTES_MAX = 64 * KIB  # of a user connection at once: others share the link
FRAME_BYTES_MAX = 256 * KIB  # a bubble with its header needs a third; a Match may be full

NONCE_BYTES = 8
WAY_BYTES = 4  # of a nonce: bubbles that share them, and their origin, take the same ways
BUBBLE_ID_BYTES = 16  # 2^64 live bubbles until two are likely to share an id by chance

EXTRAS_MAX = 32  # columns beside D0, D1 and D2: each is paid for in every Ping
EXTRA_NAME_CHARS_MAX = 64
REASON_CHARS_MAX = 256  # why somebody was refused: one line
CONNECTION_TYPE_CHARS_MAX = 64
OTHERS_MAX = 8  # hosts that a client is sent to

# Every bound of queries and documents, with its reason.


QUERY_CHARS_MAX = 1024  # what people type, and what a node stores for a stranger
QUERY_DEPTH_MAX = 8  # parentheses in parentheses: parsing and matching go as deep
QUERY_TERMS_MAX = 64  # words and comparisons: each costs time in every index that is asked
QUERY_PREFIXES_MAX = 4  # words with *: as dear as all the words that begin so

DOCUMENT_BYTES_MAX = 64 * KIB  # of a payload: it travels to hundreds of nodes
KIND_CHARS_MAX = 64  # stream, topic, event, document, or what applications add

# Of a document, only so much is looked at; what lies beyond cannot be found. Documents come from
# strangers, so these hold whatever their payload was.
DOCUMENT_DEPTH_MAX = 16  # objects and lists inside each other
DOCUMENT_VALUES_MAX = 1024  # objects and lists included
DOCUMENT_CHARS_MAX = 64 * KIB  # of all texts together
DOCUMENT_WORDS_MAX = 8192  # of all texts together: normalisation makes 18 letters of one character
PATH_CHARS_MAX = 256  # of a field, with all that it lies in
WORD_CHARS_MAX = 128  # the rest of a longer word is cut off, in queries as well; a hash has fewer

# Unicode's stream-safe format (UAX 15) lets so many marks follow a letter. Sorting them takes time
# with the square of their number: 64 Ki of them, 5 s.
MARKS_MAX = 30

INDEX_BYTES_MAX = 64 * MIB  # of one index, unless its owner says otherwise
