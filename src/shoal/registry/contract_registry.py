"""The registry over a chain: contracts called, answers cached, changes signed and seen through."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from shoal.base.errors import (
    MalformedMessage,
    NotFound,
    RegistryRefused,
    RegistryUnavailable,
    UsageError,
)
from shoal.base.ids import (
    ADDRESSES_MAX,
    Contact,
    NodeId,
    StreamId,
    parse_node_id,
    parse_stream_id,
    show_node_id,
)
from shoal.base.units import S_NS
from shoal.identity import PrivateKey, PublicKey
from shoal.kernel.access import Permission, Verdict
from shoal.registry import contracts
from shoal.registry.block_follower import Follower
from shoal.registry.chain import Block, Chain
from shoal.registry.config import CACHE_ENTRIES_MAX, RegistrySection
from shoal.registry.port import (
    EVERYBODY,
    FOREVER,
    METADATA_BYTES_MAX,
    NODES_MAX,
    PATH_BYTES_MAX,
    WHOM_MAX,
    Answer,
    Change,
    Directory,
    Permissions,
    StreamTerms,
)
from shoal.registry.sender import Sender

READ_TRIES = 3  # a read across a change is made again; after so many it is not remembered
PAGE = 16  # entries of a directory that the contract gives at once

T = TypeVar("T")


class ContractRegistry:
    """The registry port over a chain port."""

    def __init__(
        self,
        chain: Chain,
        contract: NodeId,
        directories: dict[Directory, NodeId],
        section: RegistrySection,
        key: PrivateKey | None,
    ) -> None:
        """Use `open`. Without a key nothing can be changed."""
        self.chain = chain
        self.contract = contract
        self.directories = directories
        self._section = section
        self._key = key
        self._cache = Cache(CACHE_ENTRIES_MAX)
        self._nodes: dict[Directory, tuple[Contact, ...]] = {}
        addresses = (contract, *directories.values())
        self._follower = Follower(
            chain, addresses, section.depth, section.head_age_s_max, self._forget
        )
        self._sender = Sender(chain, self._follower, section)
        self._polling: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, chain: Chain, contract: NodeId, section: RegistrySection, key: PrivateKey | None
    ) -> ContractRegistry:
        """The registry whose Streams contract is at an address."""
        streams, head = contracts.streams(), await chain.head()
        try:
            directories = {}
            for directory in Directory:
                function = streams.functions[directory.value]
                raw = await chain.call(contract, function.call(), head)
                directories[directory] = function.result(raw)
        except (MalformedMessage, RegistryRefused) as error:
            raise NotFound(
                f"there is no registry at {show_node_id(contract)} on {chain.where} (chain"
                f" {chain.chain_id}): check registry.contract, or make one with"
                " `shoal registry deploy`"
            ) from error
        registry = cls(chain, contract, directories, section, key)
        await registry._follower.poll()
        registry._polling = asyncio.create_task(registry._follower.keep_polling(section.interval_s))
        return registry

    @property
    def seen(self) -> Block:
        """The block that reads are of."""
        return self._follower.seen

    @property
    def problem(self) -> str | None:
        """Why the chain could not be read the last time, for people; None if it could."""
        return self._follower.problem

    async def close(self) -> None:
        """Stop following, and let go of the chain."""
        if self._polling is not None:
            self._polling.cancel()
            with suppress(asyncio.CancelledError):
                await self._polling
        await self.chain.close()

    async def refresh(self) -> None:
        """See now what is new, instead of soon; RegistryUnavailable."""
        await self._follower.poll()

    # Reads

    def permitted(self, stream: StreamId, who: NodeId, kind: Permission) -> Answer:
        """Whether somebody may do something now; one look into the cache."""
        if self._follower.age_s > self._section.staleness_s:
            return Answer.STALE
        now_s = time.time()
        own: Permissions | None = self._cache.get((stream, who))
        if own is not None and own.holds(kind, now_s):
            return Answer.YES
        public: Permissions | None = self._cache.get((stream, EVERYBODY))
        if public is not None and public.holds(kind, now_s):
            return Answer.YES
        return Answer.UNKNOWN if own is None or public is None else Answer.NO

    async def permissions(self, stream: StreamId, who: NodeId) -> Permissions:
        """What somebody may do, what everybody may included."""
        await self._check_age()
        own, public = self._cache.get((stream, who)), self._cache.get((stream, EVERYBODY))
        if own is None or public is None:
            owner, path = _parts(stream)

            async def read() -> tuple[Permissions, Permissions]:
                packed = await self._call(
                    self.contract, contracts.streams(), "permissions", owner, path, (who, EVERYBODY)
                )
                own, public = map(Permissions.unpacked, packed)
                return own, public

            def keep(found: tuple[Permissions, Permissions]) -> None:
                self._cache.put((stream, who), found[0])
                self._cache.put((stream, EVERYBODY), found[1])

            own, public = await self._read(read, keep)
        joined: Permissions = own.joined(public)
        return joined

    async def verdict(self, stream: StreamId, who: NodeId) -> Verdict:
        """The same for machines: what somebody may do now, and until when that counts."""
        changes = self._follower.changes
        try:
            permissions = await self.permissions(stream, who)
        except RegistryUnavailable as error:
            return Verdict(0, time.time_ns(), str(error))
        now_ns = time.time_ns()
        oldest_ns = now_ns - int(self._follower.age_s * S_NS)
        until_ns = oldest_ns + int(self._section.staleness_s * S_NS)
        if self._follower.changes != changes:
            until_ns = now_ns  # it may be of before a change that was told already
        allowed = 0
        for kind, expiry_s in zip(Permission, permissions.expiries_s, strict=True):
            if now_ns < expiry_s * S_NS:
                allowed |= kind
                until_ns = min(until_ns, expiry_s * S_NS)
        return Verdict(allowed, until_ns)

    async def stream(self, stream: StreamId) -> StreamTerms:
        """What was decided for a stream; NotFound."""
        await self._check_age()
        terms: StreamTerms | None = self._cache.get((stream, None))
        if terms is None:
            owner, path = _parts(stream)

            async def read() -> StreamTerms:
                found = await self._call(self.contract, contracts.streams(), "stream", owner, path)
                metadata, partitions, degree, trackers, storage_nodes = found
                return StreamTerms(metadata, partitions, degree or None, trackers, storage_nodes)

            terms = await self._read(read, lambda found: self._cache.put((stream, None), found))
        if terms.partitions == 0:
            raise NotFound(
                f"there is no stream {stream} in the registry {self.chain.where}: its owner makes"
                f" it with `shoal stream create /{_parts(stream)[1]}`"
            )
        return terms

    async def nodes(self, directory: Directory) -> tuple[Contact, ...]:
        """The trackers, or the storage nodes, in the order of their ids."""
        await self._check_age()
        found = self._nodes.get(directory)
        if found is None:

            async def read() -> tuple[Contact, ...]:
                listed: list[Contact] = []
                while True:
                    page = await self._call(
                        self.directories[directory], contracts.directory(), "page", len(listed)
                    )
                    listed += (Contact(node, addresses) for node, addresses in page)
                    if len(page) < PAGE:
                        return tuple(sorted(listed, key=lambda contact: contact.node))

            found = await self._read(read, lambda found: self._nodes.update({directory: found}))
        return found

    async def admin(self, directory: Directory) -> NodeId:
        """Who lists and removes nodes."""
        contract = self.directories[directory]
        admin: NodeId = await self._call(contract, contracts.directory(), "admin")
        return admin

    async def ask(self, function: str, *arguments: Any) -> Any:
        """What a function of the Streams contract gives; not from the cache."""
        await self._check_age()
        return await self._call(self.contract, contracts.streams(), function, *arguments)

    def watch(self, since: int | None = None) -> AsyncIterator[Change]:
        """Changes as they become final, from a block on, or from now on."""
        return self._follower.watch(since)

    # Changes

    async def create(self, path: str, terms: StreamTerms) -> StreamId:
        """Make a stream of this key."""
        path = path.removeprefix("/")
        stream = parse_stream_id(f"{show_node_id(self.signer().address)}/{path}")
        _check_path(path)
        await self._change(self.contract, "create_stream", path, _packed(terms))
        return stream

    async def edit(self, stream: StreamId, terms: StreamTerms) -> None:
        """Replace what was decided for a stream."""
        await self._change(self.contract, "edit_stream", *_parts(stream), _packed(terms))

    async def delete(self, stream: StreamId) -> None:
        """End a stream, and all permissions on it."""
        await self._change(self.contract, "delete_stream", *_parts(stream))

    async def grant(
        self,
        stream: StreamId,
        whom: Sequence[NodeId],
        kinds: Permission,
        expires_s: int = FOREVER,
    ) -> None:
        """Give permissions until a time; other kinds stay as they are."""
        if not time.time() < expires_s <= FOREVER:
            raise UsageError(f"permissions until {expires_s} end before they begin: give a later")
        await self._set_permissions(stream, whom, kinds, expires_s)

    async def revoke(self, stream: StreamId, whom: Sequence[NodeId], kinds: Permission) -> None:
        """Take permissions away."""
        await self._set_permissions(stream, whom, kinds, 0)

    async def put_node(self, directory: Directory, contact: Contact) -> None:
        """List a node, or change where it is reached."""
        if not 1 <= len(contact.addresses) <= ADDRESSES_MAX:
            raise UsageError(f"a node has 1 to {ADDRESSES_MAX} addresses")
        await self._change(self.directories[directory], "put", contact.node, contact.addresses)

    async def remove_node(self, directory: Directory, node: NodeId) -> None:
        """Take a node off the list."""
        await self._change(self.directories[directory], "remove", node)

    async def do(self, function: str, *arguments: Any) -> None:
        """Have a function of the Streams contract take place."""
        await self._change(self.contract, function, *arguments)

    async def hand_over(self, directory: Directory, admin: NodeId) -> None:
        """Have somebody else list and remove nodes."""
        await self._change(self.directories[directory], "hand_over", admin)

    async def _set_permissions(
        self, stream: StreamId, whom: Sequence[NodeId], kinds: Permission, expires_s: int
    ) -> None:
        if not 1 <= len(whom) <= WHOM_MAX:
            raise UsageError(f"permissions are set for 1 to {WHOM_MAX} addresses at once")
        arguments = (*_parts(stream), whom, int(kinds), expires_s)
        await self._change(self.contract, "set_permissions", *arguments)

    async def _change(self, contract: NodeId, function: str, *arguments: Any) -> None:
        kind = contracts.streams() if contract == self.contract else contracts.directory()
        data = kind.functions[function].call(*arguments)
        await self._sender.send(self.signer(), contract, data)

    def signer(self) -> PrivateKey:
        """The key that changes are signed with; UsageError if there is none."""
        if self._key is None:
            raise UsageError("a change of the registry is signed: name a keystore as key in [node]")
        return self._key

    # The cache

    async def _check_age(self) -> None:
        """Nothing older than the bound is given to anybody."""
        if self._follower.age_s <= self._section.staleness_s:
            return
        try:
            await self._follower.poll()
        except RegistryUnavailable as error:
            raise RegistryUnavailable(
                f"the registry was out of reach for {self._follower.age_s:.0f} s, and what is"
                f" known of it counts for {self._section.staleness_s:g} s: {error}"
            ) from error

    async def _read(self, read: Callable[[], Awaitable[T]], keep: Callable[[T], None]) -> T:
        """Read, and remember what was read, if nothing changed meanwhile."""
        for _ in range(READ_TRIES):
            changes = self._follower.changes
            try:
                found = await read()
            except RegistryUnavailable:
                if self._follower.problem is not None:
                    raise  # nobody answers, whatever is asked
                # The block that we read from may have been replaced: then a poll finds another.
                before = self._follower.seen
                await self._follower.poll()
                if self._follower.seen == before:
                    raise
                continue
            if self._follower.changes == changes:
                keep(found)
                return found
        return await read()

    async def _call(
        self, contract: NodeId, kind: contracts.Contract, function: str, *arguments: Any
    ) -> Any:
        called = kind.functions[function]
        raw = await self.chain.call(contract, called.call(*arguments), self._follower.seen)
        try:
            return called.result(raw)
        except MalformedMessage as error:
            raise RegistryUnavailable(
                f"the registry's chain at {self.chain.where} answers what cannot be: {error}"
            ) from error

    def _forget(self, changes: Sequence[Change]) -> None:
        for change in changes:
            match change.what:
                case "unknown":
                    self._cache.clear()
                    self._nodes.clear()
                case "directory":
                    self._nodes.clear()
                case "edited" if change.stream is not None:
                    self._cache.drop((change.stream, None))
                case "permissions" if change.stream is not None:
                    self._cache.drop((change.stream, change.who))
                case _ if change.stream is not None:
                    self._cache.drop_stream(change.stream)


def _parts(stream: StreamId) -> tuple[NodeId, str]:
    """Owner and path of a stream."""
    owner, _, path = parse_stream_id(stream).partition("/")
    return parse_node_id(owner), path


def _check_path(path: str) -> None:
    if len(path.encode()) > PATH_BYTES_MAX:
        raise UsageError(
            f"path {path!r} has {len(path.encode())} bytes, the registry takes {PATH_BYTES_MAX}"
        )


def _packed(terms: StreamTerms) -> tuple[Any, ...]:
    """As the contract takes them."""
    if len(terms.metadata.encode()) > METADATA_BYTES_MAX:
        raise UsageError(
            f"metadata has {len(terms.metadata.encode())} bytes, the registry takes"
            f" {METADATA_BYTES_MAX}: keep the rest elsewhere and link to it"
        )
    for nodes in (terms.trackers, terms.storage_nodes):
        if len(nodes) > NODES_MAX:
            raise UsageError(f"a stream has {NODES_MAX} trackers and storage nodes at most")
    return (
        terms.metadata,
        terms.partitions,
        terms.degree or 0,
        terms.trackers,
        terms.storage_nodes,
    )


# What was read of streams: their terms, and permissions by address. Bounded, oldest use first.


Key = tuple[StreamId, NodeId | None]
"""A stream and an address, for permissions; a stream and None, for its terms."""


class Cache:
    """Forgets what was not used for longest."""

    def __init__(self, entries_max: int) -> None:
        """So many at most."""
        self._entries_max = entries_max
        self._values: OrderedDict[Key, Any] = OrderedDict()
        self._of_stream: dict[StreamId, set[NodeId | None]] = {}

    def get(self, key: Key) -> Any:
        """The value, or None."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: Key, value: Any) -> None:
        """Know it from now on."""
        self._values[key] = value
        self._values.move_to_end(key)
        self._of_stream.setdefault(key[0], set()).add(key[1])
        while len(self._values) > self._entries_max:
            self.drop(next(iter(self._values)))

    def drop(self, key: Key) -> None:
        """Forget one."""
        if self._values.pop(key, None) is not None:
            of_stream = self._of_stream[key[0]]
            of_stream.discard(key[1])
            if not of_stream:
                del self._of_stream[key[0]]

    def drop_stream(self, stream: StreamId) -> None:
        """Forget all of a stream."""
        for who in self._of_stream.pop(stream, ()):
            self._values.pop((stream, who), None)

    def clear(self) -> None:
        """Forget everything."""
        self._values.clear()
        self._of_stream.clear()

    def __len__(self) -> int:
        """How many are known."""
        return len(self._values)


# Who may read a stream, and the public keys that its keys are wrapped for.
#
# A list in the contract names every address that was ever given something in a stream; what each of
# them may do now is asked as always. An address is the hash of a public key, and does not give it
# away: whoever grants, or has the key, puts it into the contract, which checks that it is the right
# one. A registry that was made before these lists knows of nobody: its readers ask for keys.


POINT_HALF_BYTES = 32


class StreamReader(msgspec.Struct, frozen=True):
    """Somebody who may read a stream."""

    node: NodeId
    until_s: int
    """When that ends; FOREVER: never."""
    public: PublicKey | None = None
    """If it is known."""


class Audience(msgspec.Struct, frozen=True):
    """Who may read a stream now."""

    is_public: bool
    """Everybody may: nobody is listed."""
    until_s: int
    """If it is public: when that ends."""
    readers: tuple[StreamReader, ...] = ()


async def audience(registry: ContractRegistry, stream: StreamId) -> Audience:
    """Everybody, or these; RegistryUnavailable."""
    now_s = time.time()
    public = await registry.permissions(stream, EVERYBODY)
    if public.holds(Permission.SUBSCRIBE, now_s):
        return Audience(True, public.expiry_s(Permission.SUBSCRIBE))
    ends_s = {parse_node_id(stream.partition("/")[0]): FOREVER}
    listed = await members(registry, stream)
    for begin in range(0, len(listed), WHOM_MAX):
        some = listed[begin : begin + WHOM_MAX]
        found = await asyncio.gather(*(registry.permissions(stream, who) for who in some))
        for who, permissions in zip(some, found, strict=True):
            if permissions.holds(Permission.SUBSCRIBE, now_s):
                ends_s[who] = permissions.expiry_s(Permission.SUBSCRIBE)
    keys = await public_keys(registry, list(ends_s))
    readers = (StreamReader(who, end_s, keys.get(who)) for who, end_s in ends_s.items())
    return Audience(False, FOREVER, tuple(readers))


async def members(registry: ContractRegistry, stream: StreamId) -> list[NodeId]:
    """Every address that was given something in a stream, now or in the past."""
    owner, _, path = stream.partition("/")
    found: list[NodeId] = []
    while True:
        try:
            page = await registry.ask("members", parse_node_id(owner), path, len(found))
        except RegistryRefused:
            return found  # an older contract
        found += page
        if len(page) < WHOM_MAX:
            return found


async def public_keys(
    registry: ContractRegistry, whom: Sequence[NodeId]
) -> dict[NodeId, PublicKey]:
    """The keys of those whose key is known."""
    found: dict[NodeId, PublicKey] = {}
    for begin in range(0, len(whom), WHOM_MAX):
        some = whom[begin : begin + WHOM_MAX]
        try:
            points = await registry.ask("public_keys", some)
        except RegistryRefused:
            return found  # an older contract
        for who, (x, y) in zip(some, points, strict=True):
            key = _key_at(x, y)
            if key is not None and key.address == who:
                found[who] = key
    return found


async def put_public_key(registry: ContractRegistry, key: PublicKey) -> None:
    """Make a key known, unless it is."""
    if key.address in await public_keys(registry, [key.address]):
        return
    try:
        await registry.do("put_public_key", *key.coordinates())
    except RegistryRefused as error:
        raise RegistryRefused(
            f"the public key of {show_node_id(key.address)} is not taken ({error}): a registry of"
            " an older Shoal has no room for it"
        ) from error


def _key_at(x: int, y: int) -> PublicKey | None:
    if not (x or y):
        return None
    try:
        point = x.to_bytes(POINT_HALF_BYTES, "big") + y.to_bytes(POINT_HALF_BYTES, "big")
        return PublicKey.from_bytes(b"\x04" + point)
    except MalformedMessage:
        return None  # a hash that happens to be an address, and no key
