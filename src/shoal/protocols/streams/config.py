"""Every bound and interval of the streams protocol, with its reason."""

from __future__ import annotations

import msgspec

from shoal.base.units import KIB, MIB, MS_NS, S_NS
from shoal.identity.message_body import CONTENT_BYTES_MAX
from shoal.protocols.streams.stream_quota import Quotas

DEGREE_DEFAULT = 4  # the paper's k; 3 is the least that stays connected under crash bursts
DEGREE_MAX = 64  # more neighbours than this is a star, not an overlay
FRAME_BYTES_MAX = CONTENT_BYTES_MAX + 4 * KIB  # content, id, signature, hop header
HOPS_MAX = 255  # far above any diameter here: 20,000 nodes at degree 4 are 13 hops wide
RTT_US_MAX = 60_000_000  # a link with a longer round trip is down
STORAGE_NODES_MAX = 16  # storage nodes of one stream: more copies than anybody keeps
PROBES_MAX = 16  # members that one is asked to measure at once
HOLDERS_MAX = 4  # members that a reader is told to ask for keys: the publisher, and some to spare
HEADS_MAX = 256  # chains in one Heads message: 20 KiB
HEADS_CHAINS_MAX = 16 * HEADS_MAX  # told at once, in so many of them: thousands of sensors, 320 KiB
CHAIN_AHEAD_NS = 30 * S_NS
"""A chain further ahead of its publisher's clock ends, and another begins: half of what nodes take,
since theirs may be behind."""
PENDING_BYTES_MIN = 4 * KIB  # what a small message counts as while its signature is checked


class NodeConfig(msgspec.Struct, frozen=True):
    """Settings of a node's stream machine."""

    open_timeout_ns: int = 5 * S_NS
    """An instructed link not open by then has failed: ten round trips around the world."""

    open_retry_ns: int = 1 * S_NS
    """Open is said again while the other side is silent: longer than any round trip."""

    close_timeout_ns: int = 2 * S_NS
    """After Close, data still in flight is taken for this long, unless Close comes back first."""

    retry_ns: int = 10 * S_NS
    """A node tries missing neighbours of its last instruction again at this interval."""

    join_retry_ns: int = 3 * S_NS
    """A Join without an instruction in return is said again; so is an unanswered Leave."""

    refused_ns: int = 1 * S_NS
    """A Join that was refused is said again: what was granted a moment ago takes about as long to
    be known everywhere. An application that may do nothing leaves before that."""

    leaving_max: int = 1000
    """Streams that were left while a tracker was away, for it to hear if it is back soon."""

    redial_ns: int = 200 * MS_NS
    """A tracker whose link broke is dialled once more after this, or up to twice as long: a
    thousand nodes do the same. Then the next tracker has its turn."""

    tracker_patience_ns: int = 2 * S_NS
    """A tracker that could not be dialled by then counts as gone: three handshakes around the
    world. The dial goes on."""

    seek_ns: int = 3 * S_NS
    """Trackers that streams would rather be with are tried about this often."""

    answer_ns: int = 12 * S_NS
    answer_linked_ns: int = 60 * S_NS
    """A tracker that has not answered a Join by then is passed over: four Joins, and twice as long
    as a takeover holds its answers back. A node that has neighbours loses nothing by waiting, and
    might lose them if it alone went on."""

    silent_max_ns: int = 120 * S_NS
    """A tracker that speaks but answers no Join is tried again after `seek_ns`, then after twice as
    long, and so on up to this."""

    linger_ns: int = 1 * S_NS
    """A stream that moved to a better tracker leaves the old one after this, when all have moved
    whose links the old one would move meanwhile."""

    ping_ns: int = 10 * S_NS
    """RTT is measured this often: 8 small messages a node, at degree 4."""

    probe_ns: int = 5 * S_NS
    """A tracker that asked for round trips to others gets those that were measured by then: a dial
    and three pings around the world take two seconds."""

    report_min_ns: int = 1 * S_NS
    """Lost links go to the tracker at most this often, gathered."""

    report_first_ns: int = 5 * S_NS
    """The first round trips are told when each was measured a few times: estimates need them."""

    report_rtt_ns: int = 30 * S_NS
    """RTTs go to the tracker at this interval."""

    early_opens_max: int = 64
    """Peers that may say Open before our instruction names them; each is a few words."""

    pending_bytes_high: int = 4 * MIB
    pending_bytes_low: int = 1 * MIB
    """What one link may have us hold until its signatures are checked: a thousand small messages,
    40 ms of one core, or eight of the largest. With more it is not read until so little is left
    that the sender's queue, and ours, have something to do meanwhile. Storage has its pages: what
    does not fit is asked for again."""

    pending_bytes_max: int = 64 * MIB
    """More than a link brings that is not read any more: one batch of a megabyte and what else one
    read of a socket takes, 8,000 of the smallest messages, which count as 32 MiB. Whatever brings
    more does not heed the pause, and what it brings is lost."""

    patience_ns: int = 1 * S_NS
    in_vain_ns: int = 10 * S_NS
    """A neighbour whose send queue is high is waited for for so long, and if that was in vain not
    again for so long. It has to take the 384 KiB between the queue's marks in that second: twice
    the busiest stream that we know. Instructions, pings and other machines' messages on the links
    that are held up wait as well, less than any of their timeouts."""

    ranges_per_chain_max: int = 10_000
    """Ranges of the duplicate detector; the paper's bound."""

    chains_per_stream_max: int = 100_000
    """Of these a publisher that opens chains for sport may take half; a chain is a few hundred
    bytes at most, unless it has gaps."""

    chains_per_publisher_max: int = 512
    """Once half of them are taken. A publisher with every partition in use may start anew four
    times within the freshness window."""

    freshness_ns: int = 300 * S_NS
    """Older live messages are replays: history comes from storage, not from flooding."""

    future_ns: int = 60 * S_NS
    """A publisher's clock may be this far ahead before its messages are refused."""

    clock_settle_ns: int = 20 * S_NS
    """After our clock was set, gaps are not given up for so long: what would fill them may have
    been refused over a wrong reading, and neighbours keep it for a minute."""

    offences_max: int = 8
    """Invalid messages from one neighbour before we drop it and say so to the tracker."""

    offenders_max: int = 64
    """Neighbours whose offences are remembered, also when their links are gone."""

    waiting_bytes_per_chain_max: int = 8 * MIB
    waiting_bytes_max: int = 32 * MIB
    """What waits for a message before it, of one chain and of all chains of a stream, of which half
    may be of one publisher; each message with a KiB on top. Then the gap is given up. While storage
    fills a gap, ten times as fast as a chain of 50 messages of 2 kB a second goes on, 50 seconds of
    that chain can wait."""

    recent_ns: int = 60 * S_NS
    recent_bytes_max: int = 4 * MIB
    """What is kept for neighbours that missed something: longer than any repair takes, and twenty
    seconds of the busiest stream that we know."""

    heads_ns: int = 2 * S_NS
    """A chain without news for this long is quiet: neighbours tell each other its last message."""

    gap_wait_ns: int = 300 * MS_NS
    """A missing message may still come over another path: overlay paths around the world differ
    by this much."""

    repair_tick_ns: int = 100 * MS_NS
    fill_wait_ns: int = 1 * S_NS
    """A neighbour that was asked answers within a round trip, if at all."""

    fill_tries: int = 12
    """Every neighbour three times, before a gap is given up."""

    storage_tries: int = 6
    """After so many of them storage is asked as well: neighbours cost less, and mostly have it."""

    storage_wait_ns: int = 15 * S_NS
    """Storage answers by then, also if two of its nodes have to be given up first. A node that
    has no machine to ask with waits in vain, and no longer."""

    storage_away_ns: int = 10 * S_NS
    """Storage that answered nothing by then is not asked for further gaps for so long, while there
    are neighbours to ask."""

    gaps_at_once: int = 16
    """Gaps of one chain that neighbours are asked for together, when they seem not to have the
    first: six times as many questions in a second, which even a single neighbour answers."""

    absent_ns: int = 5 * S_NS
    absent_before_ns: int = 30 * S_NS
    """A node that was without neighbours for this long asks storage for what was published since,
    and before that: links are given up some time after they fall silent, and clocks differ."""

    fill_bytes_max: int = 256 * KIB
    """One answer; what is left is asked for again."""

    fill_burst: int = 100
    fill_refill_ns: int = 20 * MS_NS
    fill_peers_max: int = 1000
    """Requests that one neighbour may make at once, and then per second."""

    broken_max: int = 4096
    """Chains under repair at once: half of them of those that only Heads told of, a few thousand
    sensors that published while this node was away. Each is a few words."""

    held_messages_max: int = 1000
    """Own messages that wait for the first neighbour."""


class AccessConfig(msgspec.Struct, frozen=True):
    """What is remembered of who may do what, where there is a registry."""

    verdicts_max: int = 65_536
    """Of streams and nodes; each is a few hundred bytes."""

    retry_ns: int = 1 * S_NS
    """While nobody can say, it is asked for this often."""

    staleness_ns: int = 120 * S_NS
    """What two nodes believe may be so far apart: the registry's `staleness_s`."""

    held_bytes_max: int = 4 * MIB
    """What one link may have us hold until it is known whether its publishers may publish: 1,024
    small messages, apart from those whose signature is being checked."""

    strangers_burst: int = 1000
    strangers_refill_ns: int = 100 * MS_NS
    strangers_links_max: int = 1000
    """Publishers that one link may have us ask for at once, and then per interval: everybody in a
    large stream, but not a new one with each message for ever."""

    joins_max: int = 10_000
    """Joins that wait for the registry, at a tracker."""


class TrackerConfig(msgspec.Struct, frozen=True):
    """Settings of a tracker."""

    degree: int = DEGREE_DEFAULT

    resend_ns: int = 3 * S_NS
    """An instruction without a status is said again: dialling takes seconds at worst."""

    gone_ns: int = 5 * S_NS
    """A member whose tracker link is down may come back before the overlay closes over it."""

    sweep_ns: int = 10 * S_NS
    """Connectivity and free slots are checked this often, outside the join path."""

    settle_ns: int = 2 * S_NS
    settle_max_ns: int = 6 * S_NS
    """A tracker that takes a stream over waits this long for the next of the nodes that others
    named, and this long in all: as long as it takes until everybody has looked for it."""

    changes_burst: int = 10
    changes_refill_ns: int = 1 * S_NS
    """Joins and leaves that one node may make in one stream at once, and then per interval."""

    node_changes_burst: int = 500
    node_changes_refill_ns: int = 10 * MS_NS
    """The same over all streams of a node: one with thousands of streams takes a while to join."""

    failures_burst: int = 16
    failures_refill_ns: int = 1 * S_NS
    """Failed links that one node may report in a stream: each moves several others."""

    questions_burst: int = 100
    questions_refill_ns: int = 100 * MS_NS
    """Questions after storage nodes, of one node: once per stream, and again if all are silent. As
    many after those who have keys, counted by themselves: once per publisher, and every 5 s."""

    introduced_ns: int = 10 * S_NS
    """A reader and whom it was told to ask may call each other for so long: as it asks."""

    introduced_max: int = 4 * HOLDERS_MAX
    """Of one reader: four publishers at once. It is told of more, but cannot call these."""

    epoch_ahead_ns: int = 24 * 3600 * S_NS
    """No tracker's clock is further ahead than this: a later epoch is a lie, and would use up the
    epochs there are."""

    notice_ns: int = 3 * S_NS
    notice_tries: int = 20
    """A storage node that has not joined a stream that it was told of is told again, for a minute:
    its own Join may wait, but one that does not want to never comes. The next Join of somebody else
    begins anew."""

    limited_max: int = 100_000
    """Nodes and streams whose rate is remembered."""

    streams_max: int = 100_000
    streams_per_node_max: int = 10_000
    """What one tracker, and one node at it, may take part in."""

    streams_of_key_max: int = 10_000
    streams_of_prefix_max: int = 30_000
    """What one key, and one address prefix, may have a tracker begin, and never more than half of
    what is free: so no number of sources closes it to others (`quotas.py`)."""


# Every bound and interval of the history protocol, with its reason.


PAGE_BYTES_MAX = 256 * KIB
"""Signed bytes of one page, unless its first message is larger: a few milliseconds of a link."""

HISTORY_FRAME_BYTES_MAX = FRAME_BYTES_MAX + 64 * KIB
"""The largest message, or a full page with what is said about each of its 1,000 rows; well below
what a link carries in one frame."""

FUTURE_NS = 60 * S_NS
"""A publisher's clock may be this far ahead, as for live messages."""

LATE_MS = 60_000
"""A message may come to a storage node this long after its timestamp: publishers' clocks may be so
far behind, and a publisher tries for twelve seconds. So two nodes that were compared at a time have
the same messages up to this long before it, but for those that came later still: each of these is
acknowledged once nobody can claim to be complete without it."""


class StorageConfig(msgspec.Struct, frozen=True):
    """Settings of a storage node's machine."""

    questions_in_flight_max: int = 32
    """Questions of one peer that wait for the disk: more than a reader with a full window of pages
    needs, and 8 MiB of answers at most."""

    questions_burst: int = 1_000
    questions_refill_ns: int = 1 * MS_NS
    """Questions of one peer at once, and then per second: a publisher that has each of its
    messages kept is not held up before a disk would be."""

    peers_max: int = 1_000
    """Peers with questions in flight or whose rate is remembered; more are told "busy"."""

    idle_ns: int = 60 * S_NS
    """A peer that has asked nothing for this long gets its link back: others may need it."""

    waiting_messages_max: int = 16_384
    waiting_bytes_max: int = 32 * MIB
    """What waits for its signature or for the disk, of all streams: two batches of a store, or 25
    seconds of the busiest stream known. What does not fit comes back by anti-entropy."""

    retain_ns: int = 10 * S_NS
    """Between passes of retention: what is too old may stay this much longer."""

    retain_step_ns: int = 20 * MS_NS
    """Between the steps of a pass: what is to be stored comes first."""

    compare_ns: int = 1500 * MS_NS
    """A question waits for a comparison with the other storage nodes for this long at most: a
    reader takes a node that has not answered within 3 s for gone."""

    streams_max: int = 100_000
    streams_of_key_max: int = 10_000
    streams_of_prefix_max: int = 30_000
    """Streams that all publishers, one key, and one address prefix may have us begin to keep, where
    the settings name none: some say "*". As many as a store may know; never more of one source than
    half of what is free (`quotas.py`)."""

    future_ns: int = FUTURE_NS

    @property
    def quotas(self) -> Quotas:
        """Of streams that publishers begin."""
        return Quotas(self.streams_max, self.streams_of_key_max, self.streams_of_prefix_max)

    gaps_ns: int = 30 * S_NS
    """A message whose predecessor in its chain is not here is looked at again after this: it may be
    late, or come with what neighbours or other storage nodes have. Then as often, for it may still
    come from the disk of its publisher."""

    gaps_max: int = 10_000
    """Gaps that are remembered and looked at; a few hundred bytes each."""

    gaps_at_once: int = 256
    """Of these in one question to the disk: a millisecond."""

    stored_ids_max: int = 16_384
    """Messages that are known to have been stored just now: as many as may wait for the disk."""

    chains_max: int = 100_000
    """Chains whose newest message is remembered, as many as a stream may have. Of one that was
    forgotten the next message is looked up."""


class SyncConfig(msgspec.Struct, frozen=True):
    """Settings of anti-entropy between the storage nodes of a stream."""

    poll_ns: int = 2 * S_NS
    """Each peer is asked for its heads this often: how far a replica is behind in quiet times, for
    a hundred bytes a log."""

    not_kept_ns: int = 30 * S_NS
    """A peer that keeps nothing that we keep is left, and asked again after this."""

    polled_streams_max: int = 256
    """Streams in one question for heads; the next question goes on with the next ones."""

    listed_pages_max: int = 16
    """Pages of a peer's list of streams in one round, 256 streams each: heads have their turn in
    between."""

    streams_max: int = 100_000
    """Streams that are followed because a peer holds them: as many as a store may know."""

    rows_max: int = 500
    """Rows of a log in one page, without messages: 50 KB."""

    answer_timeout_ns: int = 10 * S_NS
    """A peer that has not answered by then has lost the question."""

    retry_ns: int = 5 * S_NS
    """A peer that could not be reached is tried again after this, with as much jitter."""

    penalty_ns: int = 600 * S_NS
    """A log that a peer tells lies about is not asked of it again for this long; nor longer is one
    whose next row is from the future."""

    owner_patience_ns: int = 60 * S_NS
    """A log is taken from its owner. If that is away for this long, from whoever else has it."""

    behind_ns: int = 60 * S_NS
    """Readers are sent to other storage nodes until we have what those have that are there; for
    this long at most after a link came up, or after the last rows that came over it."""

    silent_ns: int = 1 * S_NS
    """A peer that has not answered a question for this long is not waited for by readers, until it
    answers again."""

    noted_ns: int = 60 * S_NS
    """How far we have been compared with a peer is written to disk this often, and when its link is
    lost: after a restart we still know what we had of a peer that is gone."""

    behind_dial_ns: int = 3 * S_NS
    """The same for one that is being dialled: it may as well be down, and readers would wait."""

    answers_in_flight_max: int = 16
    """Questions of one peer that wait for our disk: as many as an honest one has at once, and some
    more."""

    penalties_max: int = 1_000
    """Logs that are not asked of some peer for a while."""

    granted_ahead_ns: int = 60 * S_NS
    """Up to when a peer may speak for us, at most, is on disk so much ahead, so that it is known
    after a restart: half a minute before that time comes it is written anew."""


class ClientConfig(msgspec.Struct, frozen=True):
    """Settings of whoever reads history, or has messages kept."""

    away_ns: int = 10 * S_NS
    """A storage node that could not be reached is not asked again before, if another one answers:
    no read waits three seconds for a node that the read before it has found dead."""

    page_rows: int = 256
    """Rows of one question: their signatures take ten milliseconds of one core."""

    checks_at_once: int = 64
    """Signatures under way at once, of all reads: live messages wait behind no more than these."""

    answer_ns: int = 3 * S_NS
    """A storage node that has not answered by then is taken for gone, and the next one asked; so
    is one that could not be dialled, and a tracker."""

    retry_ns: int = 1 * S_NS
    rounds: int = 3
    """All storage nodes of a stream are tried so often, with a pause between, before a read ends
    with a problem."""

    empty_pages_max: int = 10_000
    """Pages without a row, one after the other: a filter may pass over millions of messages, but
    whoever sends more of them than this keeps us busy for nothing."""

    questions_per_peer_max: int = 16
    """Questions on their way to one peer; more wait here. Half of what a storage node takes."""

    idle_ns: int = 5 * S_NS
    """A link that nothing was asked over for this long is given back."""

    named_after_ns: int = 1 * S_NS
    """A tracker that has not said by then who keeps a stream is not waited for where the settings
    of this node say so, too: three times what an answer takes around the world."""

    named_ns: int = 10 * S_NS
    """How long these are relied on, before trackers are asked once more."""

    found_ns: int = 60 * S_NS
    """How long the answer of a tracker, who keeps a stream, is good."""

    not_kept_ns: int = 5 * S_NS
    """The same, if it was: nobody. An owner who has just named one should not wait."""

    streams_max: int = 10_000
    """Streams whose storage nodes are remembered."""

    reads_max: int = 1_024
    """Reads at once: a subscriber has one for each partition. Two pages each are held at most."""

    keeps_max: int = 10_000
    """Messages that wait to be kept, of half a megabyte at most, mostly of half a kilobyte."""

    fill_rounds: int = 2
    fills_max: int = 100
    """Gaps that storage is asked for at once, a page of each; the rest is asked for when these have
    come. Live messages wait behind a gap: it is tried less often than a read."""

    catch_ups_at_once: int = 16
    catch_up_rows_max: int = 4_096
    """Streams that are read at once after an absence, and rows of one partition: a node that was
    cut off comes back to all of its streams in the same moment."""

    catch_up_retry_ns: int = 10 * S_NS
    catch_up_tries: int = 7
    """If no tracker or storage node answers, the absence is made up for after this, then after
    twice as long, and so on, this often in all: storage nodes have ten minutes to come back."""


# Bounds and times of keys, with their reasons.


KEYS_FRAME_BYTES_MAX = 1024  # a request with the longest stream id has about 400

KEY_AGE_NS = 24 * 3600 * S_NS
"""A publisher replaces its key at least so often. Readers rely on it: the announcement of a key
lies no further than this before a message that is sealed with it."""


class SealingConfig(msgspec.Struct, frozen=True):
    """When a publisher takes another key."""

    age_ns: int = KEY_AGE_NS
    seals_max: int = 2**24
    """Messages under one key; AES-GCM would bear more (2^32), but nobody needs them."""
    own_keys_max: int = 64
    """Keys of this process that somebody new is given, for the history: the newest."""
    readers_max: int = 16_384
    """Readers for whom keys are wrapped, 16 messages of 110 KB: the rest asks for them."""


class ExchangeConfig(msgspec.Struct, frozen=True):
    """Asking for keys, and answering."""

    finds_max: int = 256
    """Keys that are looked for at once."""
    dial_ns: int = 3 * S_NS
    """A service link that is not up by then is not waited for. Most take half a second; a call
    through NATs takes some round trips more."""
    ask_ns: int = 1 * S_NS
    """One who does not answer by then is passed over."""
    idle_ns: int = 1 * S_NS
    """A link that nothing was asked over for this long is given back."""
    questions_per_peer_max: int = 16
    """On their way to one peer at once; it takes 64."""
    again_ns: int = 1 * S_NS
    """Between two rounds over all who may have it: they may be looking for it themselves."""
    named_ns: int = 5 * S_NS
    """Whom a tracker named is asked for so long before it is asked again: others may have come."""
    named_max: int = 256
    """Publishers of whom it is remembered."""
    patience_ns: int = 10 * S_NS
    """Then it is said that nobody has it."""
    requests_burst: int = 64
    request_ns: int = 100 * MS_NS
    """A peer may ask so often at once, and then once in this time: a wrap takes 0.1 ms."""
    request_peers_max: int = 4096
    met_max: int = 4096
    """Readers whose public keys are remembered: about a megabyte."""
    expected_ns: int = 10 * S_NS
    """A reader that the tracker has announced may come for so long: as long as it asks."""
    expected_max: int = 256
    """Readers that are expected: each is dialled. More have to ask others, or again."""
    checks_max: int = 256
    """Requests that wait for the registry's word; more are answered as if the key were not here."""


class WaitingConfig(msgspec.Struct, frozen=True):
    """Messages whose key is not here."""

    patience_ns: int = 10 * S_NS
    """A message waits so long for its key, then it is shown without its content."""
    chain_messages_max: int = 512
    messages_max: int = 2048
    """Of one chain, and of one subscription: the oldest goes on without its content."""
