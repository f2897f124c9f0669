"""Which roles of a node work now: the checks behind `Node.readiness`, /ready, doctor and metrics;
and the lines of the log that say what changes: roles, configured peers, storage that is behind.

A node that is in no stream has no link to a tracker. So every 20 s one is dialled, and the link is
let go again, until one of [[trackers]] has proven that it is the one that the file names.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

import msgspec

from shoal.base.ids import Contact, NodeId, StreamId, short_node_id, show_node_id
from shoal.config.network_file import NetworkFile
from shoal.node.background import Tasks
from shoal.node.roles.registry import RegistryRole
from shoal.node.roles.storage import StorageRole
from shoal.node.search.client import SearchRole
from shoal.node.topics.client import TopicRole
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.member.tracker_selection import TrackerRing
from shoal.runtime import RuntimeHost

LOOK_S = 2.0  # between two looks for changes that the log tells of
PROBE_S = 20.0  # between two dials of a tracker that no stream needs: a handshake is cheap
PROBE_ANSWER_S = 6.0  # a dial takes 5 s at most
POLL_S = 0.1  # between looks at whether a dial has been answered
NAMED_MAX = 3  # streams that a reason names
PEERS_MAX = 64  # of each section, whose coming and going the log tells
LOST_LOOKS = 2  # at a peer before it is lost: a restart that takes a second is none
BEHIND_LOOKS = 5  # between two looks at whether each stream in storage is behind

log = logging.getLogger("shoal.node")


class _Peer(msgspec.Struct):
    """One whom the network file names, as the log has it."""

    what: str
    node: NodeId
    looks: int = 0
    """So many in a row found it lost."""
    lost_s: float | None = None


class NodeReadiness:
    """Adds the checks of a node's own parts to its host's, and sees to what they need."""

    def __init__(self, host: RuntimeHost) -> None:
        self._host = host
        self._tasks = Tasks()
        self._answered = False
        """Whether a tracker did, the last time that one was dialled."""
        self._peers: dict[NodeId, _Peer] = {}
        self._storage: StorageRole | None = None
        self._behind = 0
        """Streams that are, as the log has it."""

    def start(self, network: NetworkFile) -> None:
        """Tell the log of changes from now on, of those whom the network file names, too."""
        self.take(network)
        self._tasks.start(self._watch())

    def take(self, network: NetworkFile) -> None:
        """These are the peers whose coming and going the log tells."""
        before, self._peers = self._peers, {}
        for what, entries in (
            ("tracker", network.trackers),
            ("storage node", network.storage_nodes),
            ("bootstrap node", (*network.bootstrap, *network.search_bootstrap)),
        ):
            for entry in entries[:PEERS_MAX]:
                contact = entry.contact()
                if contact.node != self._host.node:
                    known = before.get(contact.node) or _Peer(what, contact.node)
                    self._peers.setdefault(contact.node, known)

    async def close(self) -> None:
        """Look no more."""
        await self._tasks.close()

    # Roles

    def tracker(self, addresses: Sequence[str]) -> None:
        """This node is a tracker."""

        def check() -> str | None:
            if not addresses:
                return "nobody can reach this tracker: give it an address, as listen under [node]"
            return None

        self._host.readiness.add("tracker", check)

    def streams(self, machine: StreamNode) -> None:
        """This node takes part in streams: each has a tracker, or some tracker would take one."""
        self._host.readiness.add("streams", partial(self._check_streams, machine))
        self._tasks.start(self._probe(machine.trackers.ring))

    def dht(self, role: TopicRole) -> None:
        """This node is part of the DHT, and of topics."""
        self._host.readiness.add("dht", partial(self._check_dht, role))
        self._host.readiness.add("dht", lambda: role.problem)

    def search(self, role: SearchRole) -> None:
        """This node is part of the search network."""
        self._host.readiness.add("search", partial(self._check_search, role))

    def storage(self, role: StorageRole) -> None:
        """This node keeps streams; the role itself says whether it can."""
        self._storage = role

    def registry(self, role: RegistryRole) -> None:
        """This node asks a registry who may do what."""
        self._host.readiness.add("registry", lambda: role.registry.problem)

    # Checks

    def _is_here(self, node: NodeId) -> bool:
        return node == self._host.node or node in self._host.connections

    def _check_streams(self, machine: StreamNode) -> str | None:
        contacts = tuple(machine.trackers.ring.trackers.values())
        lost: list[StreamId] = []
        for stream in machine.streams:
            at = machine.trackers.at(stream)
            if at is None or not self._is_here(at):
                lost.append(stream)
        if lost:
            shown = ", ".join(lost[:NAMED_MAX])
            if len(lost) > NAMED_MAX:
                shown = f"{len(lost)} of {len(machine.streams)} streams ({shown}, ...)"
            verb = "has" if len(lost) == 1 else "have"
            return f"{shown} {verb} no tracker: {self._tried(contacts)}"
        if machine.streams or self._answered or any(self._is_here(c.node) for c in contacts):
            return None
        return f"no tracker answers: {self._tried(contacts)}"

    def _check_dht(self, role: TopicRole) -> str | None:
        others = [one for one in role.bootstrap if one.node != self._host.node]
        if len(role.dht.table) or (role.dht.ready and len(others) < len(role.bootstrap)):
            return None  # one that others enter through works alone, too
        if not others and role.dht.ready:
            return None
        return f"no other node of the DHT answers: {self._tried(others, '[[dht.bootstrap]]')}"

    def _check_search(self, role: SearchRole) -> str | None:
        tried = self._tried(role.bootstrap, "[[search.bootstrap]]")
        if role.machine.stranded:
            return f"this node has lost the search network, and is alone: {tried}"
        if role.machine.joined:
            return None
        return f"this node has no place in the search network yet: {tried}"

    def _tried(self, contacts: Sequence[Contact], section: str = "[[trackers]]") -> str:
        """What went wrong with the first peer that was dialled in vain, and what to look at."""
        for contact in contacts:
            problem = self._host.dial_problem(contact.node)
            if problem is not None:
                return f"{show_node_id(contact.node)}: {problem}; is it as under {section}?"
        return f"is one of {section} running?"

    # Tasks

    async def _watch(self) -> None:
        whose, looks = short_node_id(self._host.node), 0
        while True:
            await asyncio.sleep(LOOK_S)
            self._host.readiness.log_changes(whose)
            for peer in self._peers.values():
                self._look_at(peer, whose)
            looks += 1
            if self._storage is not None and looks % BEHIND_LOOKS == 0:
                self._look_at_storage(self._storage, whose)

    def _look_at(self, peer: _Peer, whose: str) -> None:
        """A peer is lost when a dial to it has failed, and since then none has come up; one that
        is not needed now is as it was."""
        problem = None if self._is_here(peer.node) else self._host.dial_problem(peer.node)
        now_s = asyncio.get_running_loop().time()
        if problem is not None:
            peer.looks += 1
            if peer.looks == LOST_LOOKS:
                peer.lost_s = now_s
                log.warning(
                    "%s: %s %s lost: %s", whose, peer.what, show_node_id(peer.node), problem
                )
        elif self._is_here(peer.node):
            peer.looks = 0
            if peer.lost_s is not None:
                took_s, peer.lost_s = now_s - peer.lost_s, None
                who = show_node_id(peer.node)
                log.info("%s: %s %s back after %.0f s", whose, peer.what, who, took_s)

    def _look_at_storage(self, role: StorageRole, whose: str) -> None:
        now_ns = self._host.now_ns()
        behind = sum(role.sync.is_behind(stream, now_ns) for stream in role.streams)
        if behind and not self._behind:
            log.warning("%s: storage is behind in %d streams, and catches up", whose, behind)
        elif self._behind and not behind:
            log.info("%s: storage has caught up", whose)
        self._behind = behind

    async def _probe(self, ring: TrackerRing) -> None:
        while True:
            self._answered = await self._one_answers(tuple(ring.trackers.values()))
            deadline_s = asyncio.get_running_loop().time() + PROBE_S
            while asyncio.get_running_loop().time() < deadline_s:
                await asyncio.sleep(LOOK_S)
                # A link of another part counts, too, also after it was let go.
                self._answered |= any(self._is_here(node) for node in ring.trackers)

    async def _one_answers(self, contacts: Sequence[Contact]) -> bool:
        """Whether a tracker is there. A link that nobody claims is let go by the host."""
        if any(self._is_here(contact.node) for contact in contacts):
            return True
        loop = asyncio.get_running_loop()
        for contact in contacts:
            self._host.dial(contact)
            deadline_s = loop.time() + PROBE_ANSWER_S
            while loop.time() < deadline_s and self._host.is_dialling(contact.node):
                await asyncio.sleep(POLL_S)
            if self._is_here(contact.node):
                return True
        return False
