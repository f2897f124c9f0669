"""What is decided for each stream: in the registry, if there is one, else in the network file.

Machines ask without waiting. What the registry says of a stream is here before any of them hears of
it: whoever opens one learns it first, and so does whoever is asked what somebody may do with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.base.ids import Contact, NodeId, StreamId, parse_node_id
from shoal.config.network_file import NetworkFile
from shoal.registry.port import StreamTerms

STREAMS_MAX = 10_000  # whose terms are remembered; a few hundred bytes each


def terms_in_file(network: NetworkFile, stream: StreamId) -> StreamTerms:
    """What the network file decides for a stream: so it is made in the registry, unless whoever
    makes it says otherwise."""
    settings = network.stream_settings(stream)
    return StreamTerms(
        partitions=settings.partitions,
        degree=settings.degree,
        trackers=tuple(parse_node_id(id) for id in settings.trackers),
        storage_nodes=tuple(parse_node_id(id) for id in settings.storage),
    )


class Terms:
    """Of all streams that this node has to do with."""

    def __init__(
        self,
        network: NetworkFile,
        trackers: Sequence[Contact] = (),
        storage_nodes: Sequence[Contact] = (),
    ) -> None:
        """Trackers and storage nodes as the registry lists them; the file's own come first."""
        self.network = network
        self._listed = tuple(trackers)
        self._known: dict[StreamId, StreamTerms] = {}
        self._storage: dict[NodeId, Contact] = {}
        self._listed_storage: tuple[Contact, ...] = ()
        self.list_storage(storage_nodes)

    def take(self, network: NetworkFile) -> None:
        """The network file says something else from now on."""
        self.network = network
        self.list_storage(self._listed_storage)

    def list_storage(self, storage_nodes: Sequence[Contact]) -> None:
        """Where storage nodes are reached."""
        self._listed_storage = tuple(storage_nodes)
        of_file = [entry.contact() for entry in self.network.storage_nodes]
        self._storage = {contact.node: contact for contact in (*storage_nodes, *of_file)}

    def learn(self, stream: StreamId, terms: StreamTerms | None) -> None:
        """What the registry says of a stream; None: there is none."""
        self._known.pop(stream, None)
        if terms is not None:
            self._known[stream] = terms
            if len(self._known) > STREAMS_MAX:
                del self._known[next(iter(self._known))]

    def known(self, stream: StreamId) -> StreamTerms | None:
        """What the registry said of it."""
        return self._known.get(stream)

    @property
    def streams(self) -> list[StreamId]:
        """Those that the registry has said something of."""
        return list(self._known)

    def trackers(self, own: Contact) -> tuple[Contact, ...]:
        """The trackers that this node's streams go to, if any."""
        if self.network.trackers or not self._listed:
            return self.network.trackers_of(own)
        return self._listed

    @property
    def storage_nodes(self) -> tuple[Contact, ...]:
        """Those that the registry or the network file lists."""
        return tuple(self._storage.values())

    def partitions(self, stream: StreamId) -> int:
        """How many a stream has."""
        terms = self._known.get(stream)
        return (
            self.network.stream_settings(stream).partitions if terms is None else terms.partitions
        )

    def degree(self, stream: StreamId) -> int | None:
        """How many neighbours a node has; None: the tracker's own."""
        terms = self._known.get(stream)
        return self.network.stream_settings(stream).degree if terms is None else terms.degree

    def pinned_trackers(self, stream: StreamId) -> tuple[NodeId, ...]:
        """The trackers that a stream goes to before all others."""
        terms = self._known.get(stream)
        if terms is None:
            return self.network.pinned_trackers(stream)
        return terms.trackers

    def storage_of(self, stream: StreamId) -> tuple[Contact, ...]:
        """The storage nodes of a stream, in the order that its owner gave."""
        terms = self._known.get(stream)
        if terms is None:
            return self.network.storage_of(stream)
        # One that is nowhere listed may be known to others, or be a member of the stream.
        return tuple([self._storage.get(node, Contact(node)) for node in terms.storage_nodes])
