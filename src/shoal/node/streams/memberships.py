"""Which streams a node is in, and why: it goes into one with the first reason, and out with the
last."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.base.errors import RegistryUnavailable, ShoalError, StreamUnavailable, UsageError
from shoal.base.ids import StreamId, show_node_id
from shoal.config.network_file import NetworkFile
from shoal.kernel.access import Permission
from shoal.node.background import Tasks
from shoal.node.roles.registry import not_permitted
from shoal.node.streams.subscription import Subscription
from shoal.protocols.streams.commands import (
    JoinStream,
    LeaveStream,
    MessageArrived,
    MessageTaken,
    StreamReady,
    StreamRefused,
)
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.runtime import RuntimeHost

if TYPE_CHECKING:
    from shoal.node.roles.registry import RegistryRole

MEMBERS_MAY = (Permission.PUBLISH, Permission.SUBSCRIBE)
JOIN_TIMEOUT_S = 15.0  # dialling a tracker, being taken in, opening links: well within this
ANYWAY_S = 2.0  # of that, for a message that storage nodes take without the tracker
UNSENT_S = 2.0  # for a first neighbour, when a node leaves: a link that is being made is there
LOOK_S = 0.02  # between looks for one

log = logging.getLogger("shoal.node")


class Membership(msgspec.Struct, eq=False):
    """Why this node is in a stream."""

    answered: asyncio.Event
    """It has its place in the overlay, or is refused one."""
    users: int = 0
    """Subscriptions, whoever waits to be taken in, and one more if it stays."""
    stays: bool = False
    """It publishes, or was asked to carry the stream: until the node's end."""
    kept: bool = False
    """It is a storage node of the stream."""
    subscriptions: list[Subscription] = []
    refused: ShoalError | None = None
    """What the tracker said instead of taking it in."""
    problem: str = ""
    """Why the tracker cannot say now."""


class Memberships:
    """The streams of one node."""

    def __init__(
        self,
        host: RuntimeHost,
        machine: StreamNode | None,
        network: NetworkFile,
        registry: RegistryRole | None = None,
    ) -> None:
        self.joined: dict[StreamId, Membership] = {}
        self.entering: Callable[[StreamId], None] = lambda stream: None
        """Told of each stream before this node takes part in it: it may be one that it keeps."""
        self._host = host
        self._machine = machine
        self.network = network
        self._registry = registry
        self._tasks = Tasks()
        self._closed = False

    @property
    def machine(self) -> StreamNode:
        """The stream machine; UsageError if there is none."""
        if self._closed:
            raise UsageError("this node is closed: open another one")
        if self._machine is None:
            raise UsageError("this node knows no tracker: add [[trackers]] to its network file")
        return self._machine

    async def stay_in(self, stream: StreamId, *, anyway: bool = False) -> None:
        """Be in a stream until the end; or, anyway, as soon as its tracker answers."""
        membership = self.joined.get(stream)
        if membership is not None and membership.stays:
            return
        await self.enter(stream, None, anyway=anyway)
        membership = self.joined[stream]
        if membership.stays:
            await self._exit(stream, membership, None)  # somebody else was faster
        membership.stays = True

    async def enter(
        self, stream: StreamId, subscription: Subscription | None, *, anyway: bool = False
    ) -> None:
        """Be in a stream, for one more reason; undone if it does not come to that, unless it is to
        be tried on anyway."""
        machine = self.machine
        self.entering(stream)
        membership = self.joined.setdefault(stream, Membership(asyncio.Event()))
        membership.users += 1
        if subscription is not None:
            membership.subscriptions.append(subscription)
        try:
            await self._host.issue(machine, self._join(stream, subscription))
            async with asyncio.timeout(ANYWAY_S if anyway else JOIN_TIMEOUT_S):
                await membership.answered.wait()
            if membership.refused is not None:
                raise membership.refused
            self.machine  # noqa: B018  it may have been closed meanwhile
        except TimeoutError:
            if anyway:
                return
            await self._exit(stream, membership, subscription)
            raise StreamUnavailable(self._no_answer(stream, membership.problem)) from None
        except BaseException:
            await self._exit(stream, membership, subscription)
            raise

    def keep(self, stream: StreamId) -> None:
        """Be in a stream until the end, for the storage role."""
        membership = self.joined.setdefault(stream, Membership(asyncio.Event()))
        membership.users += 1
        membership.kept = True
        self._host.command(self.machine, self._join(stream, None, keep=True))

    def unkeep(self, stream: StreamId) -> None:
        """The storage role does not keep it any more."""
        membership = self.joined.get(stream)
        if membership is not None and membership.kept:
            membership.kept = False
            self._tasks.start(self._exit(stream, membership, None))

    def has_neighbours(self, stream: StreamId) -> bool:
        """Whether anybody else is in a stream, as far as this node sees."""
        state = None if self._machine is None else self._machine.streams.get(stream)
        return state is not None and bool(state.channel.active)

    async def exit(self, stream: StreamId, subscription: Subscription) -> None:
        """A subscription ends."""
        membership = self.joined.get(stream)
        if membership is not None and subscription in membership.subscriptions:
            await self._exit(stream, membership, subscription)

    async def close(self) -> None:
        """Leave every stream."""
        self._closed = True
        await self._tasks.close()
        for membership in self.joined.values():
            membership.answered.set()  # nobody waits for a node that is gone
            for subscription in membership.subscriptions:
                subscription.close()
        await self._until_sent(list(self.joined))
        for stream in list(self.joined):
            await self._leave(stream)

    def heard(self, event: Any) -> None:
        """What the stream machine tells."""
        if type(event) is MessageArrived:
            for subscription in self._subscriptions(event):
                if subscription.ordered:
                    subscription.push(event)
        elif type(event) is MessageTaken:
            for subscription in self._subscriptions(event):
                if not subscription.ordered:
                    arrived = MessageArrived(event.message, event.hops, event.received_ns)
                    subscription.push(arrived)
        elif type(event) is StreamReady:
            membership = self.joined.get(event.stream)
            if membership is not None:
                membership.answered.set()
        elif type(event) is StreamRefused:
            membership = self.joined.get(event.stream)
            if membership is not None:
                self._tasks.start(self._refused(event, membership))

    def _subscriptions(self, event: MessageArrived | MessageTaken) -> Sequence[Subscription]:
        membership = self.joined.get(event.message.id.stream)
        return () if membership is None else membership.subscriptions

    async def _refused(self, event: StreamRefused, membership: Membership) -> None:
        """It is asked again if that may help; whoever waits hears of it when patience ends."""
        machine, stream = self.machine, event.stream
        membership.problem = event.problem
        if event.later:
            return
        try:
            if self._registry is not None and await self._registry.may(stream, *MEMBERS_MAY):
                membership.problem = "it does not know yet what was granted"
                return
        except RegistryUnavailable as error:
            membership.problem = str(error)
            return
        if self.joined.get(stream) is not membership:
            return  # left meanwhile
        membership.refused = not_permitted(stream, machine.node, Permission.SUBSCRIBE)
        membership.answered.set()
        for subscription in membership.subscriptions:
            subscription.fail(membership.refused)
        if not membership.kept:  # whoever keeps it is named again, perhaps
            del self.joined[stream]
            self._host.command(machine, LeaveStream(stream))

    async def _exit(
        self, stream: StreamId, membership: Membership, subscription: Subscription | None
    ) -> None:
        """One reason less."""
        if self.joined.get(stream) is not membership:
            return  # the node is closed, or was refused
        if subscription is not None:
            membership.subscriptions.remove(subscription)
        membership.users -= 1
        if not membership.users:
            await self._until_sent([stream])
        if not membership.users and self.joined.get(stream) is membership:
            await self._leave(stream)

    def _join(
        self, stream: StreamId, subscription: Subscription | None, *, keep: bool = False
    ) -> JoinStream:
        ordered = subscription is None or subscription.ordered
        redundant_feeds = self.network.redundant_feeds(stream)
        return JoinStream(stream, subscription is not None, ordered, keep, redundant_feeds)

    async def _until_sent(self, streams: Sequence[StreamId]) -> None:
        """What was published while there was no neighbour has a moment to find one."""
        deadline_s = asyncio.get_running_loop().time() + UNSENT_S
        while left := [(stream, count) for stream in streams if (count := self._unsent(stream))]:
            if asyncio.get_running_loop().time() > deadline_s:
                for stream, count in left:
                    log.warning("%s: left with %d messages unsent: no neighbour", stream, count)
                return
            await asyncio.sleep(LOOK_S)

    def _unsent(self, stream: StreamId) -> int:
        state = None if self._machine is None else self._machine.streams.get(stream)
        return 0 if state is None else len(state.held)

    async def _leave(self, stream: StreamId) -> None:
        del self.joined[stream]
        if self._machine is not None and stream in self._machine.streams:
            await self._host.issue(self._machine, LeaveStream(stream))

    def _no_answer(self, stream: StreamId, problem: str) -> str:
        tracker = self.machine.trackers.ring.order(stream)[0].node
        if problem:
            return (
                f"{stream}: tracker {show_node_id(tracker)} does not take this node in within"
                f" {JOIN_TIMEOUT_S:g} s: {problem}"
            )
        undialled = self._host.dial_problem(tracker)
        return (
            f"{stream}: no answer from tracker {show_node_id(tracker)} within "
            f"{JOIN_TIMEOUT_S:g} s{f' ({undialled})' if undialled else ''}: "
            "is it running, at the address in the network file?"
        )
