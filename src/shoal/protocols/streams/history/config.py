"""Every bound and interval of the history protocol, with its reason."""

from __future__ import annotations

import msgspec

from shoal.base.units import KIB, MIB, MS_NS, S_NS
from shoal.protocols.streams.config import FRAME_BYTES_MAX as MESSAGE_BYTES_MAX
from shoal.protocols.streams.quotas import Quotas

PAGE_BYTES_MAX = 256 * KIB
"""Signed bytes of one page, unless its first message is larger: a few milliseconds of a link."""

HISTORY_FRAME_BYTES_MAX = MESSAGE_BYTES_MAX + 64 * KIB
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
