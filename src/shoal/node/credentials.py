"""What a node proves itself with: its key, and its certificate."""

from __future__ import annotations

import asyncio
import ssl

from shoal.base.errors import ConfigError, WrongPassphrase
from shoal.identity import Entropy, PrivateKey, open_keystore
from shoal.node.network_file import NetworkFile


async def key_of(network: NetworkFile, entropy: Entropy) -> PrivateKey:
    """The key that the file names, or a new one."""
    if network.node.key is None:
        return PrivateKey.generate(entropy)
    path, passphrase = network.path(network.node.key), network.passphrase()
    try:
        # It takes a third of a second of one core, on purpose.
        return await asyncio.to_thread(open_keystore, path, passphrase)
    except WrongPassphrase as error:
        if network.node.passphrase is not None:
            raise
        raise ConfigError(
            f"node.passphrase: {path} needs one: write env:NAME or file:PATH"
        ) from error


def tls_of(network: NetworkFile) -> ssl.SSLContext | None:
    """How wss:// addresses are served, if there is a certificate."""
    if network.node.certificate is None:
        return None
    path = network.path(network.node.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(path)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            f"node.certificate: {path}: {error}: give a PEM file with certificate and key"
        ) from error
    return context
