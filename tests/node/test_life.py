"""A node's life: opened from a file with a keystore, under TLS, and closed whatever happens."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from shoal.base.errors import ConfigError, NotFound, WrongPassphrase
from shoal.base.units import S_NS
from shoal.config.network_file import tracker_contact
from shoal.config.sections import NodeSection, TrackerSection
from shoal.identity import PrivateKey, ScryptCost, SeededEntropy, create_keystore
from shoal.node import NetworkFile, Node
from shoal.transport.port import TransportLimits
from shoal.transport.websocket import WebSocketTransport
from tests.node.network import Town, contents, in_town, network_of, open_tracker, run, take
from tests.transport.recorder import until

CHEAP = ScryptCost(n=16, r=1, p=1)


def keystore(path: Path, name: str, passphrase: str = "open sesame") -> PrivateKey:
    entropy = SeededEntropy(name)
    key = PrivateKey.generate(entropy)
    create_keystore(path, key, passphrase, entropy, cost=CHEAP, allow_empty_passphrase=True)
    return key


def certificate(path: Path) -> None:
    """A certificate that it has signed itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shoal")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(
        signed.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


# Keys


def test_a_node_has_the_key_of_its_file(tmp_path: Path) -> None:
    key = keystore(tmp_path / "node.key", "node")
    (tmp_path / "secret").write_text("open sesame\n")
    path = tmp_path / "shoal.toml"
    path.write_text('[node]\nkey = "node.key"\npassphrase = "file:secret"\n[tracker]\n')

    async def main() -> None:
        async with Node.open(path) as node:
            assert node.id == key.address
            assert node.tracker is not None
            assert node.addresses[0].startswith("ws://127.0.0.1:")
            stream = await node.create_stream("/x")
            async with stream.subscribe() as messages:
                await stream.publish({"speed": 8.3})
                assert contents(await take(messages, 1)) == [{"speed": 8.3}]

    asyncio.run(main())  # the thread that opened the keystore is the loop's own


def test_without_a_key_the_id_is_new_each_time() -> None:
    async def main() -> None:
        async with Node.open(NetworkFile()) as one, Node.open(NetworkFile()) as two:
            assert one.id != two.id

    run(main())


def test_a_keystore_that_does_not_open_says_why(tmp_path: Path) -> None:
    keystore(tmp_path / "node.key", "node")
    (tmp_path / "secret").write_text("open barley\n")

    async def opened(**settings: str) -> None:
        network = NetworkFile(node=NodeSection(**settings), folder=str(tmp_path))  # type: ignore[arg-type]
        async with Node.open(network):
            raise AssertionError("never reached")

    with pytest.raises(WrongPassphrase):
        asyncio.run(opened(key="node.key", passphrase="file:secret"))
    with pytest.raises(ConfigError, match=r"node\.passphrase: .*node\.key needs one: write env:"):
        asyncio.run(opened(key="node.key"))
    with pytest.raises(NotFound, match=r"other\.key"):
        asyncio.run(opened(key="other.key"))


def test_a_keystore_without_a_passphrase_opens_unattended(tmp_path: Path) -> None:
    key = keystore(tmp_path / "node.key", "node", passphrase="")
    network = NetworkFile(node=NodeSection(key="node.key"), folder=str(tmp_path))

    async def main() -> None:
        async with Node.open(network) as node:
            assert node.id == key.address

    asyncio.run(main())


# TLS


def test_nodes_talk_under_tls(tmp_path: Path) -> None:
    certificate(tmp_path / "node.pem")
    secure = NodeSection(listen=("wss://127.0.0.1:0",), certificate="node.pem")

    async def main() -> None:
        folder = str(tmp_path)
        network = NetworkFile(node=secure, tracker=TrackerSection(), folder=folder)
        async with Node.open(network) as tracker:
            assert tracker.addresses[0].startswith("wss://127.0.0.1:")
            entry = tracker_contact(tracker.id, list(tracker.addresses))
            member = NetworkFile(node=secure, trackers=(entry,), folder=folder)
            async with Node.open(member) as one, Node.open(member) as two:
                stream = await one.create_stream("/x")
                async with (await two.open_stream(stream.id)).subscribe() as messages:
                    await stream.publish("secret")
                    assert contents(await take(messages, 1)) == ["secret"]
                    (link,) = [
                        link for peer, link in two.host.connections.items() if peer == one.id
                    ]
                    assert link.peer.node == one.id

    run(main())


@pytest.mark.parametrize("content", [None, b"no certificate"])
def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "node.pem").write_bytes(content)
    secure = NodeSection(listen=("wss://127.0.0.1:0",), certificate="node.pem")

    async def main() -> None:
        with pytest.raises(ConfigError, match=r"node\.certificate: .*node\.pem: .*give a PEM file"):
            async with Node.open(NetworkFile(node=secure, folder=str(tmp_path))):
                raise AssertionError("never reached")

    run(main())


# The end


def test_leaving_the_context_leaves_every_stream() -> None:
    async def scenario(town: Town) -> None:
        (stays,) = await town.move_in()
        stream = await stays.create_stream("/x")
        async with stream.subscribe():
            network = NetworkFile(trackers=stays.network.trackers)
            async with Node.open(network) as node:
                other = await node.open_stream(stream.id)
                async with other.subscribe() as messages:
                    await stream.publish(1)
                    await take(messages, 1)
                    assert town.members(stream.id) == [stays.id, node.id]
            # At once: it said so, the tracker need not wait for it.
            await until(lambda: town.members(stream.id) == [stays.id], 2)
            await until(lambda: stays.degree(stream.id) == 0, 2)

    in_town(scenario)


def test_an_error_inside_the_context_closes_everything() -> None:
    async def scenario(town: Town) -> None:
        async def fail() -> None:
            async with Node.open(network_of(town.tracker)) as node:
                await node.join("/x")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()

    in_town(scenario)


def test_a_subscriber_that_never_reads_holds_nobody_up() -> None:
    async def scenario(town: Town) -> None:
        one, two = await town.move_in(2)
        stream = await one.create_stream("/x")
        async with (await two.open_stream(stream.id)).subscribe(queue_max=100) as messages:
            for number in range(2000):
                await stream.publish(number)
            begin_s = time.monotonic()
            await two.close()
            assert time.monotonic() - begin_s < 10
            assert len([message async for message in messages]) <= 100

    in_town(scenario)


def test_a_neighbour_that_does_not_read_holds_the_end_up_for_seconds_only() -> None:
    async def scenario(town: Town) -> None:
        one, two = await town.move_in(2)
        (transport,) = one.host._transports
        assert isinstance(transport, WebSocketTransport)
        transport.limits = TransportLimits(close_timeout_ns=S_NS)  # five, otherwise
        stream = await one.create_stream("/x")
        async with (await two.open_stream(stream.id)).subscribe():
            await stream.publish(0)
            two.host.pause_reading(one.id, paused=True)
            for _ in range(10):
                await stream.publish(bytes(400_000))
            begin_s = time.monotonic()
            await one.close()
            assert 1 <= time.monotonic() - begin_s < 20

    in_town(scenario)


def test_a_tracker_that_ends_first_holds_nobody_up() -> None:
    async def main() -> None:
        async with open_tracker() as tracker:
            entry = tracker_contact(tracker.id, list(tracker.addresses))
            async with Node.open(NetworkFile(trackers=(entry,))) as node:
                stream = await node.create_stream("/x")
                async with stream.subscribe():
                    await tracker.close()
                    begin_s = time.monotonic()
                assert time.monotonic() - begin_s < 5

    run(main())
