"""The network: what its file names is there, answers, and is who it should be."""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import msgspec

from shoal.base.errors import ShoalError
from shoal.base.ids import Contact, show_node_id
from shoal.base.units import MS_NS, S_NS
from shoal.cli.commands.doctor import Finding, ok, problem, warning
from shoal.cli.terminal.process import API_KEY
from shoal.config.network_file import NetworkFile
from shoal.config.sections import GatewaySection
from shoal.identity import PrivateKey, SystemEntropy
from shoal.node.keys.key_lock import key_of, read_session
from shoal.node.streams.publishing import read_unkept, unkept_path
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.messages import AskTime, TellTime
from shoal.protocols.streams.peer_clocks import ClockConfig, median
from shoal.protocols.streams.wire import StreamsCodec
from shoal.registry.chain import Block
from shoal.runtime.readiness import Readiness
from shoal.storage.lmdb_file import holds_something
from shoal.storage.message_store.integrity import newest_rows
from shoal.storage.message_store.store import Store
from shoal.transport.port import Credentials, DialFailed, Frame, Link
from shoal.transport.websocket import WebSocketTransport

ANSWER_S = 5.0
ANSWER_BYTES_MAX = 1 << 20
STORE_ROWS_READ = 20_000  # a second at most; all of them are for `shoal storage verify`
BLOCK_OLD_S = 600.0  # Ethereum makes one every 12 s, and few chains are slower than a minute
SKEW_OK_S = 5.0  # HTTP tells whole seconds, and an answer takes its time


async def key(network: NetworkFile) -> Finding:
    """Whether the keystore opens, and nobody else reads it."""
    if network.node.key is None:
        return warning(
            "key",
            "none: the node's id is new with each start",
            "make one with `shoal key new node.key`, and name it under [node]",
        )
    path = network.path(network.node.key)
    try:
        found = await key_of(network, SystemEntropy())
    except ShoalError as error:
        return problem("key", f"{path}", str(error))
    folder = path.absolute().parent
    if stat.S_IMODE(folder.stat().st_mode) & 0o022:
        return warning(
            "key",
            f"{show_node_id(found.address)}; others may write in {folder}",
            f"run `chmod go-w {folder}`",
        )
    return ok("key", f"{show_node_id(found.address)} in {path}")


def session(network: NetworkFile) -> Finding | None:
    """Whether another copy of this node has taken its place, as the node itself was told. What a
    copy that runs elsewhere was told is in its own folder."""
    if network.node.key is None:
        return None
    state = read_session(network.path(network.node.key))
    if state is None:
        return None
    if state.replaced_by:
        return problem(
            "session",
            "a newer session of this key runs elsewhere, or did while this node ran: since then"
            " this node has published and kept nothing",
            "one key is one node: stop the other one and restart this one, or give one of them a"
            " key of its own (`shoal key new`)",
        )
    return ok("session", "the newest of its key, as far as this node was told")


async def peers(network: NetworkFile) -> list[Finding]:
    """A handshake with everybody whom the file names, at each address."""
    asked: dict[tuple[str, str], tuple[str, Contact]] = {}
    for what, entries in (
        ("tracker", network.trackers),
        ("storage node", network.storage_nodes),
        ("dht", network.bootstrap),
        ("search", network.search_bootstrap),
    ):
        for entry in entries:
            for address in entry.addresses:
                asked.setdefault((entry.id, address), (what, entry.contact()))
    dials = [_dial(what, contact, at) for (_, at), (what, contact) in asked.items()]
    found = list(await asyncio.gather(*dials))
    if not found and network.tracker is None:
        found.append(
            warning(
                "peers",
                "the network file names nobody",
                "add [[trackers]], [[dht.bootstrap]] or [[search.bootstrap]]",
            )
        )
    return found


async def _dial(what: str, contact: Contact, address: str) -> Finding:
    entropy = SystemEntropy()
    # Not the node's own key: the peer would take this for the node, and hang up on it.
    credentials = Credentials(PrivateKey.generate(entropy), entropy, ("doctor",))
    transport = WebSocketTransport(credentials, _Deaf())
    who = f"{show_node_id(contact.node)} at {address}"
    begin_s = time.monotonic()
    try:
        async with asyncio.timeout(ANSWER_S):
            link = await transport.dial(address, contact.node)
    except (DialFailed, TimeoutError) as error:
        said = str(error) or f"no answer within {ANSWER_S:g} s"
        return problem(what, f"{who}: {said}", "is it running, and at this address?")
    finally:
        await transport.close()
    took_ms = (time.monotonic() - begin_s) * 1000
    return ok(what, f"{who}: {took_ms:.0f} ms, {', '.join(link.peer.roles)}")


class _Deaf:
    """Hears nothing: the handshake is all that is wanted."""

    def link_ready(self, link: Link) -> None: ...

    def frames_received(self, link: Link, frames: Sequence[Frame]) -> None: ...

    def send_queue_changed(self, link: Link, *, high: bool) -> None: ...

    def frame_rejected(self, link: Link, reason: str) -> None: ...

    def link_lost(self, link: Link, reason: str) -> None: ...

    def handshake_failed(self, address: str, reason: str) -> None: ...


async def roles(network: NetworkFile) -> list[Finding]:
    """What the running node says of itself, by its gateway, if it has one."""
    if network.gateway is None or network.gateway.listen.endswith(":0"):
        return []  # nobody knows its port
    return await asyncio.to_thread(_ask_roles, network.gateway)


def _ask_roles(section: GatewaySection) -> list[Finding]:
    scheme = "http" if section.certificate is None else "https"
    host, _, port = section.listen.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "": "127.0.0.1"}.get(host, host)
    url = f"{scheme}://{host}:{port}/ready"
    asked = urllib.request.Request(url)
    if API_KEY in os.environ:
        asked.add_header("Authorization", f"Bearer {os.environ[API_KEY]}")
    # The certificate is of this node's own file, for a name that need not be this address.
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    try:
        try:
            with urllib.request.urlopen(asked, timeout=ANSWER_S, context=tls) as answer:
                body = answer.read(ANSWER_BYTES_MAX)
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                remedy = f"give one of its keys as {API_KEY}"
                return [warning("roles", f"{url} wants an API key", remedy)]
            body = error.read(ANSWER_BYTES_MAX)
        found = msgspec.json.decode(body, type=Readiness)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return [warning("roles", f"{url} does not answer: {reason}", "is the node running?")]
    return [
        ok(f"role {one.role}", "works")
        if one.ready
        else problem(f"role {one.role}", "; ".join(one.reasons), "see docs/gateway.md#readiness")
        for one in found.roles
    ]


class _ToldTime(_Deaf):
    """Hears what time it is at the other end."""

    def __init__(self) -> None:
        self.told: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def frames_received(self, link: Link, frames: Sequence[Frame]) -> None:
        codec = StreamsCodec()
        for number, payload in frames:
            if number != codec.number or self.told.done():
                continue
            try:
                message = codec.decode(payload)
            except ShoalError:
                continue
            if isinstance(message, TellTime):
                self.told.set_result(message.wall_ms * MS_NS)


async def _ahead_of(contact: Contact) -> int | None:
    """By how many nanoseconds this machine's clock is ahead; None: no answer."""
    entropy = SystemEntropy()
    credentials = Credentials(PrivateKey.generate(entropy), entropy, ("doctor",))
    for address in contact.addresses:
        hears = _ToldTime()
        transport = WebSocketTransport(credentials, hears)
        try:
            async with asyncio.timeout(ANSWER_S):
                link = await transport.dial(address, contact.node)
                codec, begin_ns = StreamsCodec(), time.monotonic_ns()
                link.send(codec.number, codec.encode(AskTime(1)))
                told_ns = await hears.told
                return time.time_ns() - told_ns - (time.monotonic_ns() - begin_ns) // 2
        except (DialFailed, TimeoutError):
            continue  # `peers` says so
        finally:
            await transport.close()
    return None


async def pinned_clocks(network: NetworkFile) -> Finding | None:
    """This machine's clock beside those of trackers and storage nodes, as a node compares it: None
    if none answers."""
    entries = {entry.id: entry for entry in (*network.trackers, *network.storage_nodes)}
    contacts = [entry.contact() for entry in entries.values()][: ClockConfig().peers_max]
    answers = await asyncio.gather(*map(_ahead_of, contacts))
    ahead_ns = median([answer for answer in answers if answer is not None])
    if ahead_ns is None:
        return None
    answered = sum(answer is not None for answer in answers)
    ahead_s, of = ahead_ns / S_NS, f"{answered} trackers and storage nodes that answered"
    said = f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} the median of {of}"
    remedy = (
        "set this machine's clock, as `timedatectl set-ntp true` does; if theirs is wrong, set"
        " theirs, or raise clock_limit_s under [node]"
    )
    if abs(ahead_s) > network.node.clock_limit_s:
        return problem("clock", f"{said}: a node publishes nothing with it", remedy)
    if abs(ahead_s) > SKEW_OK_S:
        return warning("clock", said, remedy)
    return ok("clock", f"as those of {of}, by their median")


async def clocks(network: NetworkFile) -> AsyncIterator[Finding]:
    """This machine's clock beside those of trackers and storage nodes, and of the trackers that
    have a gateway."""
    compared = await pinned_clocks(network)
    if compared is not None:
        yield compared
    for entry in network.trackers:
        if entry.gateway is not None:
            yield await asyncio.to_thread(clock_of, entry.gateway)


def clock_of(gateway: str) -> Finding:
    before_s = time.time()
    try:
        with urllib.request.urlopen(f"{gateway.rstrip('/')}/health", timeout=ANSWER_S) as answer:
            theirs_s = parsedate_to_datetime(answer.headers["Date"]).timestamp()
    except (OSError, ValueError, TypeError) as error:
        return warning("clock", f"{gateway} does not tell: {error}", "is the gateway running?")
    skew_s = (before_s + time.time()) / 2 - theirs_s - 0.5  # it was some time in that second
    ahead = f"{abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} {gateway}"
    remedy = "set this machine's clock: turn on NTP"
    config = NodeConfig()
    if skew_s * 1e9 > config.future_ns or -skew_s * 1e9 > config.freshness_ns:
        return problem("clock", f"{ahead}: what is published here is refused", remedy)
    if abs(skew_s) > SKEW_OK_S:
        return warning("clock", ahead, remedy)
    return ok("clock", f"as that of {gateway}")


async def registry(network: NetworkFile) -> Finding | None:
    """Whether it can be read, and how new what it says is."""
    if network.registry is None:
        return None
    from shoal.registry.opening import open_registry

    try:
        async with asyncio.timeout(2 * ANSWER_S):
            opened = await open_registry(network.registry, network.path("."), None)
    except TimeoutError:
        return problem("registry", "no answer", "is the chain reachable? see registry.url")
    except ShoalError as error:
        return problem("registry", "cannot be read", str(error))
    await opened.close()
    if network.registry.url is None:  # a block is made when something is changed, and only then
        return ok("registry", f"block {opened.seen.number} of {opened.chain.where}")
    return chain_age(opened.seen, opened.chain.where, time.time())


def chain_age(block: Block, where: str, now_s: float) -> Finding:
    """Whether a chain goes on, by its newest block that counts."""
    age_s = now_s - block.timestamp_s
    found = f"block {block.number} of {where}, {age_s:.0f} s old"
    if age_s > BLOCK_OLD_S:
        return warning("registry", found, "is the endpoint in step with its chain? ask another")
    return ok("registry", found)


def store(network: NetworkFile) -> Finding | None:
    """Whether the newest rows of a storage node can be read; it may run."""
    if network.storage is None or not holds_something(network.path(network.storage.folder)):
        return None
    folder = network.path(network.storage.folder)
    try:
        with Store(folder, SystemEntropy(), readonly=True) as opened:
            rows, damaged = newest_rows(opened, STORE_ROWS_READ)
    except ShoalError as error:
        return problem("store", f"{folder} cannot be read", str(error))
    if damaged:
        return problem(
            "store",
            f"{damaged} of the newest {rows} rows in {folder} are damaged",
            "run `shoal storage verify`, stop the node, and run `shoal storage repair`",
        )
    return ok("store", f"the newest {rows} rows in {folder} can be read")


def unkept(network: NetworkFile) -> Finding | None:
    """Durable messages of this node's key that are not acknowledged."""
    if network.node.key is None:
        return None
    path = unkept_path(network.path(network.node.key))
    try:
        waiting = read_unkept(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return problem(
            "unkept messages", f"{path} cannot be read: {error}", f"run `chmod 600 {path}`"
        )
    if not waiting:
        return None
    oldest = min(message.id.timestamp_ms for message in waiting)
    since = datetime.fromtimestamp(oldest / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return warning(
        "unkept messages",
        f"{len(waiting)} in {path}, the oldest of {since}: durable messages that storage nodes have"
        " not confirmed, or not all that have to",
        "start the storage nodes that do not answer, or, if they are gone for good, take them off"
        " their streams: the messages are handed in while a node or a command runs under this key",
    )


def folders(network: NetworkFile) -> Iterator[Finding]:
    """What the node keeps can be written, and is there if it ever was."""
    if network.storage is not None and network.storage.create is None:
        from shoal.node.roles.storage import is_missing

        if is_missing(network, network.storage):
            yield problem(
                "store",
                f"there is none in {network.path(network.storage.folder)}, and this key has had one"
                " there",
                "mount its disk, or restore a backup; or write create = true under [storage]",
            )
    sections = (network.storage, network.topics, network.outbox)
    for section in sections:
        if section is not None:
            path = network.path(section.folder)
            if path.exists() and not os.access(path, os.R_OK | os.W_OK | os.X_OK):
                yield problem("folder", f"{path} cannot be written", f"run `chmod u+rwx {path}`")
