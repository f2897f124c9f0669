"""The topics role of a node: its part in the DHT and in the trees of topics, and its disk.

A node keeps the topics that it subscribes to, publishes in or carries for others, as far as its
limits go; topics that the network file pins it joins at the start, and keeps whole.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from random import Random

from shoal.base.ids import NodeId
from shoal.base.units import S_NS
from shoal.identity import PrivateKey
from shoal.kernel.codec import Codec
from shoal.kernel.disk import Disk
from shoal.kernel.machine import Machine
from shoal.node.addresses import is_local
from shoal.node.network_file import DhtSection, NetworkFile, TopicsSection
from shoal.protocols.dht.config import DhtConfig, K
from shoal.protocols.dht.node import DhtNode
from shoal.protocols.dht.wire import DhtCodec
from shoal.protocols.topics.archive import RESTORED, check_archive
from shoal.protocols.topics.config import TopicsConfig
from shoal.protocols.topics.head_records import judge_topics
from shoal.protocols.topics.node import TopicNode
from shoal.protocols.topics.wire import TopicsCodec
from shoal.storage.key_values import KeyValueDisk, KeyValueFile, space_key

log = logging.getLogger("shoal.node")

DAY_NS = 24 * 3600 * S_NS
MEGABYTE = 1_000_000
SPACE = "topics"  # the name of the machine's values on disk: never another
ANY_NUMBER = 1_000_000  # nodes of one prefix, where all of them are on one machine


class TopicRole:
    """The machines and the disk of a node with topics. Made before the host."""

    def __init__(
        self, network: NetworkFile, section: DhtSection, key: PrivateKey, rng: Random
    ) -> None:
        """Opens the folder; StoreError if that cannot be."""
        self.bootstrap = [entry.contact() for entry in section.bootstrap]
        config = _dht_config(section, network.node.listen)
        self.dht = DhtNode(key.address, self.bootstrap, judge_topics, rng, config)
        settings = _topics_config(network.topics or TopicsSection())
        self.machine = TopicNode(key, rng, settings, disk=network.topics is not None)
        self._file: KeyValueFile | None = None
        self._disk: KeyValueDisk | None = None
        if network.topics is not None:
            self._file = _opened(network.path(network.topics.folder), key.address)
            if self._file.restored:
                log.warning(
                    "%s is a copy: before this node publishes in a topic again it looks for what"
                    " it published there since the copy was made",
                    self._file.file,
                )
                self._file.settle_as(space_key(SPACE, RESTORED))

    @property
    def problem(self) -> str | None:
        """Why topics cannot be stored now, for people; None if all is well."""
        return None if self._disk is None else self._disk.problem

    @property
    def machines(self) -> tuple[Machine, ...]:
        return self.dht, self.machine

    @property
    def codecs(self) -> tuple[Codec, ...]:
        return DhtCodec(), TopicsCodec()

    def disks(self, machines: Sequence[Machine]) -> dict[int, Disk]:
        """The disk of the topics machine, by its slot among all machines of the node."""
        if self._file is None:
            return {}
        slot = machines.index(self.machine)
        self._disk = KeyValueDisk(self._file, {slot: SPACE})
        return {slot: self._disk}


def _opened(folder: Path, owner: NodeId) -> KeyValueFile:
    """The file, if what all of it depends on can be read; StoreError if not."""
    file = KeyValueFile(folder, owner)
    try:
        check_archive(lambda key: file.get(space_key(SPACE, key)))
    except BaseException:
        file.close()
        raise
    return file


def _dht_config(section: DhtSection, listen: Sequence[str]) -> DhtConfig:
    """Limits on nodes of one address prefix keep strangers from taking a table over; nodes of one
    machine are not strangers, and share all their addresses."""
    defaults = DhtConfig()
    local = is_local(listen)
    bucket_max = K if local else defaults.prefix_bucket_max
    table_max = ANY_NUMBER if local else defaults.prefix_table_max
    return DhtConfig(
        prefix_bucket_max=section.prefix_bucket_max or bucket_max,
        prefix_table_max=section.prefix_table_max or table_max,
    )


def _topics_config(section: TopicsSection) -> TopicsConfig:
    defaults = TopicsConfig()
    days = section.days_max
    return TopicsConfig(
        children_max=section.children_max or defaults.children_max,
        events_bytes_max=int(section.megabytes_max * MEGABYTE),
        age_max_ns=None if days is None else int(days * DAY_NS),
    )
