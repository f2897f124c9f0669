"""What a node is made of: the machines that its network file asks for, their codecs and disks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from shoal.base.errors import ConfigError
from shoal.base.ids import Contact, NodeId, StreamId
from shoal.config.network_file import NetworkFile
from shoal.config.sections import TrackerSection, WebRTCSection, is_local
from shoal.config.stream_settings import Terms
from shoal.identity import Entropy, PrivateKey, read_secret
from shoal.kernel.disk import Disk
from shoal.kernel.machine import Codec, Machine
from shoal.node.roles.outbox import OutboxRole
from shoal.node.roles.registry import RegistryRole
from shoal.node.roles.storage import StorageRole, TopicLogs
from shoal.node.search.client import SearchRole
from shoal.node.streams.message import Partitions
from shoal.node.topics.client import TopicRole
from shoal.protocols.search.messages import Match
from shoal.protocols.streams.config import TrackerConfig
from shoal.protocols.streams.history.client import HistoryClient
from shoal.protocols.streams.keys.key_exchange import KeyExchange
from shoal.protocols.streams.keys.key_ring import KeyRing
from shoal.protocols.streams.member.stream_node import StreamNode, StreamVicinity
from shoal.protocols.streams.member.tracker_selection import TrackerRing
from shoal.protocols.streams.peer_clocks import PeerClocks
from shoal.protocols.streams.permissions import AccessTable
from shoal.protocols.streams.signalling import SendSignal, SignalArrived, Signaller, SignalRelay
from shoal.protocols.streams.stream_quota import PrefixOf
from shoal.protocols.streams.topology.policy import TopologyPolicy
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.protocols.streams.tracker.tracker import Tracker
from shoal.protocols.streams.wire import HistoryCodec, KeysCodec, StreamsCodec
from shoal.runtime import RuntimeHost
from shoal.runtime.workers import DisksBySlot
from shoal.transport.port import Credentials, Transport
from shoal.transport.webrtc_signals import Receive


class Peers:
    """What machines may ask about peers, whose links only the host has; it is made after them."""

    def __init__(self) -> None:
        self.prefix_of: PrefixOf = lambda peer: None

    def __call__(self, peer: NodeId) -> str | None:
        """The address prefix of a peer's link."""
        return self.prefix_of(peer)


class Parts:
    """The machines of one node. None: its network file does not ask for this one."""

    def __init__(
        self,
        network: NetworkFile,
        key: PrivateKey,
        entropy: Entropy,
        rng: Random,
        cached: Sequence[Contact],
        registry: RegistryRole | None = None,
    ) -> None:
        """Opens folders; StoreError if that cannot be. `cached` are nodes of the search network
        that caches name."""
        self.terms = Terms(network) if registry is None else registry.terms
        self.partitions = Partitions(self.terms.partitions)
        self._registry = registry
        self.peers = Peers()
        self.machines: list[Machine] = []
        self.wanted_back: dict[type, Machine] = {}
        """What goes back to the machine that sent it, if it never leaves."""
        self.codecs: list[Codec] = [StreamsCodec(), HistoryCodec(), KeysCodec()]
        self.tracker: Tracker | None = None
        self.streams: StreamNode | None = None
        self.history: HistoryClient | None = None
        self.signaller: Signaller | None = None
        self.exchange: KeyExchange | None = None
        self.storage: StorageRole | None = None
        self.outbox: OutboxRole | None = None
        self.topics: TopicRole | None = None
        self.topic_logs: TopicLogs | None = None
        self.search: SearchRole | None = None
        self._disks: dict[int, Disk] = {}
        own = Contact(key.address)
        self.clocks = PeerClocks(key.address, partial(_pinned, self.terms, own), rng)
        self.machines.append(self.clocks)
        if network.tracker is not None:
            policy = partial(_make_policy, self.terms, rng.getrandbits(64))
            self.tracker = Tracker(
                policy,
                _tracker_config(network.tracker),
                self.terms.storage_of,
                self._table(),
                self.peers,
            )
            self.machines += [self.tracker, SignalRelay(self.tracker.streams)]
        trackers = self.terms.trackers(Contact(key.address))
        if trackers:
            self._add_streams(key, entropy, rng, trackers)
        if network.storage is not None:
            known = self.streams
            is_tracker = (lambda node: False) if known is None else known.trackers.__contains__
            role = StorageRole(
                self.terms,
                network.storage,
                key.address,
                entropy,
                self._table(),
                is_tracker,
                self.peers,
            )
            self._add_storage(role)
            if network.storage.topics:
                self.topic_logs = TopicLogs(role, network.storage)
        try:
            self._add_others(network, key, rng, cached)
            if network.outbox is not None:
                if self.streams is None:
                    raise ConfigError("outbox: this node knows no tracker: add [[trackers]]")
                self.outbox = OutboxRole(network, network.outbox, key, entropy, self.partitions)
        except BaseException:
            if (disk := self.disk) is not None:
                disk.close()  # folders are not ours as long as we do not run
            raise

    @property
    def disk(self) -> Disk | None:
        """The disks of all machines, if any has one."""
        return DisksBySlot(self._disks) if self._disks else None

    def _table(self) -> AccessTable | None:
        return None if self._registry is None else self._registry.table()

    def _add_streams(
        self,
        key: PrivateKey,
        entropy: Entropy,
        rng: Random,
        trackers: tuple[Contact, ...],
    ) -> None:
        network, chain = self.terms.network, entropy.token(8).hex()
        ring = TrackerRing(trackers, self.terms.pinned_trackers)
        self.streams = StreamNode(key.address, ring, key.sign, chain, rng, access=self._table())
        self.history = HistoryClient(
            key.address,
            ring.order,
            partitions_of=self.partitions.count,
            named=self.terms.storage_of,
        )
        self.machines += [self.streams, self.history]
        if network.registry is not None:  # without one, nothing is encrypted
            vicinity = StreamVicinity(self.streams)
            self.exchange = KeyExchange(key, KeyRing(), vicinity, entropy)
            self.machines.append(self.exchange)
        if network.webrtc is not None:
            introduced = () if self.exchange is None else (self.exchange.streams_of,)
            self.signaller = Signaller(self.streams, *introduced)
            self.machines.append(self.signaller)

    def _add_storage(self, role: StorageRole) -> None:
        self.storage = role
        self.machines.extend(role.machines)
        self._disks |= {self.machines.index(machine): role.disk for machine in role.machines}

    def _add_others(
        self, network: NetworkFile, key: PrivateKey, rng: Random, cached: Sequence[Contact]
    ) -> None:
        if network.search is not None:
            self.search = SearchRole(network, network.search, key, rng, cached)
            self.machines.append(self.search.machine)
            self.codecs.append(self.search.codec)
            self.wanted_back[Match] = self.search.machine  # answers look for another way
        if network.dht is not None:
            self.topics = TopicRole(network, network.dht, key, rng)
            self.machines.extend(self.topics.machines)
            self.codecs.extend(self.topics.codecs)
            self._disks |= self.topics.disks(self.machines)


def _pinned(terms: Terms, own: Contact) -> list[Contact]:
    """Whose clocks count: trackers and storage nodes that are named by their ids."""
    contacts = [*terms.trackers(own), *terms.storage_nodes]
    return list({contact.node: contact for contact in contacts}.values())


def _tracker_config(section: TrackerSection) -> TrackerConfig:
    defaults = TrackerConfig()
    return TrackerConfig(
        streams_of_key_max=section.streams_of_key_max or defaults.streams_of_key_max,
        streams_of_prefix_max=section.streams_of_prefix_max or defaults.streams_of_prefix_max,
    )


def _make_policy(terms: Terms, seed: int, stream: StreamId) -> TopologyPolicy:
    network = terms.network
    assert network.tracker is not None  # only a tracker makes policies
    degree = terms.degree(stream) or network.tracker.degree
    rng = Random(f"{seed}{stream}")
    if (network.stream_settings(stream).policy or network.tracker.policy) == "random":
        return RandomPolicy(degree, rng)
    # It needs scipy, which takes longer to load than all of Shoal: nobody else shall wait for it.
    from shoal.protocols.streams.topology.aware_policy import AwarePolicy

    return AwarePolicy(degree, rng)


# What makes a node reachable through NATs: WebRTC, with signals through its trackers.
#
# The engine comes with the extra `webrtc`, and is loaded by nodes that use it only.


def webrtc_transports(
    network: NetworkFile,
    credentials: Credentials,
    host: RuntimeHost,
    machine: Signaller | None,
) -> list[Transport]:
    """The transport that [webrtc] asks for; none without it."""
    section = network.webrtc
    if section is None:
        return []
    if machine is None:
        raise ConfigError("webrtc: calls go through a tracker: add [[trackers]]")
    try:
        from shoal.transport.webrtc import IceServer, WebRTCTransport
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"webrtc: there is no module {error.name}: pip install 'shoal[webrtc]'"
        ) from error
    servers = [IceServer(url) for url in section.stun]
    if section.turn:
        password = _password(network, section)
        servers += [IceServer(url, section.user, password) for url in section.turn]
    transport = WebRTCTransport(
        credentials,
        host,
        signalling=TrackerSignalling(host, machine),
        servers=servers,
        # Who has its trackers on this machine has its neighbours there too.
        loopback=is_local(machine.tracker_addresses()),
    )
    return [transport]


def _password(network: NetworkFile, section: WebRTCSection) -> str:
    assert section.password is not None  # the section was checked
    return read_secret("password", section.password, network.path("."), os.environ)


# The signalling port of a node, for calls to peers that nobody can dial: its trackers pass signals
# on.


class TrackerSignalling:
    """Signals through the tracker that has both."""

    def __init__(self, host: RuntimeHost, machine: Signaller) -> None:
        self.receive: Receive = lambda peer, signal: None
        self._host = host
        self._machine = machine
        host.listeners.append(self._notified)

    def send(self, peer: NodeId, signal: bytes) -> bool:
        """Pass a signal on, if any tracker of ours has this peer too."""
        if self._machine.route(peer) is None:
            return False
        self._host.command(self._machine, SendSignal(peer, signal))
        return True

    def _notified(self, event: Any) -> None:
        if type(event) is SignalArrived:
            self.receive(event.peer, event.payload)
