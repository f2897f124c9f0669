"""Every bound and interval of search, with its reason."""

from __future__ import annotations

import msgspec

from shoal.base.errors import ConfigError
from shoal.base.units import MIB, MS_NS, S_NS

LOCATIONS_MIN = 2  # with one, every crash nearby would cut a node off


class SearchConfig(msgspec.Struct, frozen=True):
    """Settings of a search machine."""

    locations: int = 3
    """Places on the circle, two neighbours each; the thesis recommends three at least."""

    locations_max: int = 32
    """An idle node with much room adds some, up to here."""

    beat_ns: int = 5 * S_NS
    """Pings are so far apart; everybody has to keep to it, for the measurement."""

    pings_missed_max: int = 3
    """A neighbour that was silent for more is gone."""

    join_ns: int = 20 * S_NS
    """A SplitEdge is answered within this or lost: 50 hops around the world, and four dials."""

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

    checks_max: int = 256
    """Signatures under way; more are not begun."""

    acquaintances_max: int = 64
    """Addresses that we remember of nodes seen lately: whoever lost all neighbours asks them."""

    peers_max: int = 4096
    """Peers whose rates are remembered."""

    clients_max: int = 64
    """Whoever searches through us without a place of its own."""

    user_connections_max: int = 256
    """Connections of applications, on all links."""

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
    """and answers to one bubble that are passed on."""

    answer_ns: int = 3 * S_NS
    """Answers to a slice are back by then: two times 15 hops of 100 ms."""

    origin_burst: int = 512
    """Bubbles of one origin that are taken at once,"""

    origin_refill_ns: int = 20 * MS_NS
    """and one more in each of these."""

    sent_max: int = 64
    """Parts of bubbles that are remembered for each edge, in case that it breaks."""

    watch_ns: int = 30 * 60 * S_NS
    """A standing query is forgotten after this, and cast again after half of it."""

    sightings_max: int = 4096
    """Documents that a standing query remembers to have told."""

    upload_bytes_s: float | None = None
    """What may be sent in a second; None: as much as the links take."""

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

    @property
    def silent_ns(self) -> int:
        """A neighbour that was not heard of for so long is gone."""
        return (self.pings_missed_max + 1) * self.beat_ns
