"""One node's place in the tree of one topic.

The tree is rooted at the topic's author. Whoever wants to be in it joins at the peer that it knows
as nearest to the author, by the metric of the DHT; that peer joins the same way. A node that has
enough children sends a joiner on to one of them, so trees deepen where topics are popular.

If the author is away, those who know nobody nearer are roots in its place. They look for somebody
nearer from time to time: so trees grow together again, at the author or at the node next to it.

Every parent tells its children the path from the root to itself. Who finds itself on the path of
its parent has found a loop, and leaves; who loses its parent knows its grandparents.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from random import Random

import msgspec

from shoal.base.errors import InvariantViolated
from shoal.base.ids import Contact, NodeId, short_node_id
from shoal.identity.topics.cid import Cid
from shoal.identity.topics.descriptors import TopicDescriptor
from shoal.identity.topics.event_signatures import signer_of
from shoal.kernel.effects import CancelTimer, CloseLink, Effect, OpenLink, Send, SetTimer
from shoal.protocols.dht.commands import Find
from shoal.protocols.dht.key_space import id_of_node
from shoal.protocols.topics.config import CONTACTS_MAX, PATH_MAX, TopicsConfig
from shoal.protocols.topics.messages import (
    JoinTopic,
    LeaveTopic,
    Message,
    NewTopic,
    Path,
    Redirect,
    Rpc,
    say,
    stamp,
)

JOIN = "join"  # the timer of an unanswered join, or of the next search; and the token of a search


class Here(msgspec.Struct):
    """This node, as others reach it."""

    node: NodeId
    addresses: tuple[str, ...] = ()

    @property
    def contact(self) -> Contact:
        return Contact(self.node, self.addresses)


class Tree:
    """Parent, children, and the search for a parent."""

    def __init__(
        self,
        id: Cid,
        topic: TopicDescriptor,
        here: Here,
        links: Links,
        greet: Callable[[int], Message],
        rng: Random,
        config: TopicsConfig,
    ) -> None:
        """Greet makes what new neighbours say to each other first."""
        self.author = signer_of(topic.author)
        self.parent: NodeId | None = None
        self.path: tuple[Contact, ...] = ()
        """From the root to the parent."""
        self.children: dict[NodeId, Contact] = {}
        self.entered = False
        self.searching = False
        """An answer of the DHT is awaited."""
        self.asked: NodeId | None = None
        """Who was asked to take us in."""
        self._id = id
        self._topic = topic
        self._here = here
        self._links = links
        self._greet = greet
        self._rng = rng
        self._config = config
        self._candidates: deque[Contact] = deque()
        self._avoid: dict[NodeId, int] = {}
        self._heard: dict[NodeId, int] = {}

    @property
    def neighbours(self) -> tuple[NodeId, ...]:
        """Whom events go to."""
        return tuple(self.children) if self.parent is None else (self.parent, *self.children)

    @property
    def is_author(self) -> bool:
        """Whether the tree is rooted here."""
        return self.author == self._here.node

    @property
    def is_root(self) -> bool:
        """Whether this node is the root, or stands in for it."""
        return self.entered and self.parent is None

    def is_neighbour(self, peer: NodeId) -> bool:
        return peer == self.parent or peer in self.children

    def heard(self, peer: NodeId, now_ns: int) -> None:
        """A neighbour lives."""
        self._heard[peer] = now_ns

    # Entering and leaving

    def enter(self, now_ns: int) -> list[Effect]:
        """Be in the tree."""
        if self.entered:
            return []
        self.entered = True
        return self._seek(now_ns)

    def leave(self, now_ns: int) -> list[Effect]:
        """Be in it no more. Children find a parent of their own."""
        self.entered = False
        effects: list[Effect] = []
        for peer in self.neighbours:
            effects += (say(peer, LeaveTopic(self._id, stamp(now_ns))), *self._drop(peer))
        self.parent, self.path, self.children = None, (), {}
        self._heard.clear()
        return [*effects, *self._stop_asking()]

    def joined(self, peer: NodeId, addresses: tuple[str, ...], now_ns: int) -> list[Effect]:
        """A peer wants to be our child. Whoever has children enters the tree itself."""
        if peer == self._here.node:
            return []
        if peer in self.children:
            self.children[peer] = Contact(peer, addresses)
            return [say(peer, self._path_message(now_ns), self._greet(now_ns))]
        above = peer == self.parent or any(contact.node == peer for contact in self.path)
        effects: list[Effect] = []
        if peer == self.asked:
            # Each asks the other: the one that is nearer to the author is the parent.
            if self._distance(peer) < self._distance(self._here.node):
                return [say(peer, Redirect(self._id, (), stamp(now_ns)))]
            effects += self._stop_asking()
        if above or len(self.children) >= self._config.children_max:
            below = () if above else self._some_children()
            effects.append(say(peer, Redirect(self._id, below, stamp(now_ns))))
            return [*effects, *self._seek_again(now_ns)]
        self.children[peer] = Contact(peer, addresses)
        self._heard[peer] = now_ns
        effects += self._links.hold(self.children[peer], self._id)
        effects.append(say(peer, self._path_message(now_ns), self._greet(now_ns)))
        return [*effects, *self._seek_again(now_ns)]

    def left(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """A neighbour is gone, or says so."""
        if peer == self.asked:
            self._avoid[peer] = now_ns + self._config.avoid_lost_ns
            return [*self._stop_asking(), *self._seek(now_ns)]
        if peer in self.children:
            del self.children[peer]
            return self._drop(peer)
        if peer != self.parent:
            return []
        self._avoid[peer] = now_ns + self._config.avoid_lost_ns
        # The grandparents, nearest first: one of them has room again.
        self._candidates.extend(reversed(self.path[:-1]))
        return [*self._lose_parent(now_ns), *self._seek(now_ns)]

    # The search for a parent

    def path_told(
        self, peer: NodeId, path: tuple[Contact, ...], now_ns: int
    ) -> list[Effect] | None:
        """Our parent, or whoever was asked to be, leads to the root like this; None if it is
        neither."""
        if peer not in (self.parent, self.asked):
            return None
        here = self._here.node
        looped = any(contact.node == here for contact in path) or len(path) >= PATH_MAX
        if looped or not path or path[-1].node != peer:
            self._avoid[peer] = now_ns + self._config.avoid_ns
            effects: list[Effect] = [say(peer, LeaveTopic(self._id, stamp(now_ns)))]
            effects += self._stop_asking() if peer == self.asked else self._lose_parent(now_ns)
            return [*effects, *self._seek(now_ns)]
        effects = []
        new = peer == self.asked
        if new:
            self.asked = None
            effects.append(CancelTimer((JOIN, self._id)))
            self._candidates.clear()
            self.parent = peer
            self._heard[peer] = now_ns
            effects.append(say(peer, self._greet(now_ns)))
        if path != self.path:
            self.path = path
            effects += self._tell_path(now_ns)
        return effects

    def redirected(
        self, peer: NodeId, contacts: Sequence[Contact], now_ns: int
    ) -> list[Effect] | None:
        """Whoever was asked has no room, or is below us; None if it was not asked."""
        if peer != self.asked:
            return None
        self._avoid[peer] = now_ns + self._config.avoid_ns
        self._candidates.extendleft(reversed(contacts))
        return [*self._stop_asking(), *self._seek(now_ns)]

    def found(self, contacts: Sequence[Contact], local: bool, now_ns: int) -> list[Effect]:
        """The DHT says who is near the author."""
        if not self.searching:
            return []
        self.searching = False
        if not self.entered or self.asked is not None or self.parent is not None:
            return []
        own = self._distance(self._here.node)
        nearer = [contact for contact in contacts if self._distance(contact.node) < own]
        for contact in nearer:
            if self._may_ask(contact, now_ns):
                return self._ask(contact, now_ns)
        if local:
            return self._search(now_ns, local=False)
        # A root in the author's place, for the time being: as soon as somebody nearer may be asked
        # again, or after a while.
        waits = [self._avoid.get(contact.node, 0) - now_ns for contact in nearer]
        delay_ns = min([self._jitter(self._config.search_ns), *[one for one in waits if one > 0]])
        return [SetTimer((JOIN, self._id), delay_ns)]

    def timed_out(self, now_ns: int) -> list[Effect]:
        """Whoever was asked did not answer; or it is time to look for somebody once more."""
        if self.asked is None:
            waits = self.is_root and not self.is_author and not self.searching
            return self._search(now_ns, local=False) if waits else []
        self._avoid[self.asked] = now_ns + self._config.avoid_ns
        return [*self._stop_asking(), *self._seek(now_ns)]

    def link_opened(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """A link that we waited for is up."""
        return self._join(peer, now_ns) if peer == self.asked else []

    def beat(self, now_ns: int) -> list[Effect]:
        """Part with neighbours that are silent, and greet the others."""
        self._avoid = {peer: until for peer, until in self._avoid.items() if until > now_ns}
        effects: list[Effect] = []
        for peer in self.neighbours:
            if now_ns - self._heard.get(peer, now_ns) > self._config.silence_ns:
                effects += self.left(peer, now_ns)
        greeting = self._greet(now_ns)
        if self.parent is not None:
            effects.append(say(self.parent, greeting))
        if self.children:
            told = Rpc((self._path_message(now_ns), greeting))
            effects.append(Send(told, tuple(self.children)))
        return effects

    def _seek_again(self, now_ns: int) -> list[Effect]:
        """After a search was given up on the way."""
        return [] if self.parent is not None or self.asked is not None else self._seek(now_ns)

    def _seek(self, now_ns: int) -> list[Effect]:
        if self.is_author or not self.entered or self.searching:
            return []
        while self._candidates:
            contact = self._candidates.popleft()
            if self._may_ask(contact, now_ns):
                return self._ask(contact, now_ns)
        return self._search(now_ns, local=True)

    def _search(self, now_ns: int, *, local: bool) -> list[Effect]:
        self.searching = True
        target, token = id_of_node(self.author), (JOIN, self._id, local)
        return [Send(Find(target, local, token), (self._here.node,))]

    def _may_ask(self, contact: Contact, now_ns: int) -> bool:
        node = contact.node
        return (
            node != self._here.node
            and node not in self.children
            and self._avoid.get(node, 0) <= now_ns
        )

    def _ask(self, contact: Contact, now_ns: int) -> list[Effect]:
        self.asked = contact.node
        effects = self._links.hold(contact, self._id)
        effects.append(SetTimer((JOIN, self._id), self._config.join_timeout_ns))
        if contact.node in self._links.up:
            effects += self._join(contact.node, now_ns)
        return effects

    def _join(self, peer: NodeId, now_ns: int) -> list[Effect]:
        # The topic goes along: a peer that is to carry it need not look for it.
        now = stamp(now_ns)
        join = JoinTopic(self._id, now, self._here.addresses)
        return [say(peer, NewTopic(self._topic, now), join)]

    def _stop_asking(self) -> list[Effect]:
        if self.asked is None:
            return []
        peer, self.asked = self.asked, None
        return [CancelTimer((JOIN, self._id)), *self._drop(peer)]

    def _lose_parent(self, now_ns: int) -> list[Effect]:
        assert self.parent is not None  # that is what is lost
        effects = self._drop(self.parent)
        self.parent, self.path = None, ()
        return [*effects, *self._tell_path(now_ns)]

    def _drop(self, peer: NodeId) -> list[Effect]:
        self._heard.pop(peer, None)
        return self._links.release(peer, self._id)

    # What children are told

    def _path_message(self, now_ns: int) -> Path:
        return Path(self._id, (*self.path, self._here.contact), stamp(now_ns))

    def _path_for(self, peers: tuple[NodeId, ...], now_ns: int) -> Send:
        return Send(Rpc((self._path_message(now_ns),)), peers)

    def _tell_path(self, now_ns: int) -> list[Effect]:
        return [self._path_for(tuple(self.children), now_ns)] if self.children else []

    def _some_children(self) -> tuple[Contact, ...]:
        reachable = [contact for contact in self.children.values() if contact.addresses]
        return tuple(self._rng.sample(reachable, min(CONTACTS_MAX, len(reachable))))

    def _distance(self, node: NodeId) -> int:
        return id_of_node(node) ^ id_of_node(self.author)

    def _jitter(self, delay_ns: int) -> int:
        return int(delay_ns * self._rng.uniform(0.5, 1.5))

    def check_invariants(self) -> None:
        """Raise InvariantViolated if this node is its own neighbour, or above itself."""
        node = self._here.node
        if node in self.neighbours or any(contact.node == node for contact in self.path):
            raise InvariantViolated(f"{short_node_id(node)} is above or below itself")
        if self.parent in self.children:
            raise InvariantViolated(f"{short_node_id(node)} has its parent as a child")
        if len(self.children) > self._config.children_max:
            raise InvariantViolated(f"{short_node_id(node)} has {len(self.children)} children")


# Links of this machine: one claim for each peer, whoever of the topics needs it.


PURPOSE = "topics"


class Links:
    """Who needs which link."""

    def __init__(self) -> None:
        self.up: dict[NodeId, None] = {}
        self._users: dict[NodeId, dict[Hashable, None]] = {}

    def hold(self, contact: Contact, user: Hashable) -> list[Effect]:
        """Have a link for somebody; it may be up already."""
        users = self._users.get(contact.node)
        if users is not None:
            users[user] = None
            return []
        self._users[contact.node] = {user: None}
        return [OpenLink(contact, PURPOSE)]

    def release(self, peer: NodeId, user: Hashable) -> list[Effect]:
        """Somebody needs a link no more."""
        users = self._users.get(peer)
        if users is None or user not in users:
            return []
        del users[user]
        if users:
            return []
        del self._users[peer]
        self.up.pop(peer, None)
        return [CloseLink(peer, PURPOSE)]

    def opened(self, peer: NodeId) -> list[Hashable]:
        """A link is up; gives who waits for it."""
        if peer not in self._users:
            return []
        self.up[peer] = None
        return list(self._users[peer])

    def lost(self, peer: NodeId) -> list[Hashable]:
        """A link is gone; gives who had it."""
        self.up.pop(peer, None)
        return list(self._users.pop(peer, ()))
