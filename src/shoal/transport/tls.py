"""TLS under a link. Certificates need no authority: the handshake proves the id, and is bound to
the certificate that the server showed (handshake.py)."""

from __future__ import annotations

import hashlib
import ssl
from contextlib import suppress

from shoal.base.errors import UsageError


def dialling_context() -> ssl.SSLContext:
    """For dialling: takes any certificate, since the handshake checks who holds it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def certificate_digest(certificate: bytes) -> bytes:
    """The channel binding of a certificate in DER."""
    return hashlib.sha256(certificate).digest()


def served_certificate(context: ssl.SSLContext) -> bytes:
    """The certificate that a server's context shows, in DER. Python has no call that tells, so
    the context is asked in the only way that there is: by a client, in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        server = context.wrap_bio(to_server, to_client, server_side=True)
        client = dialling_context().wrap_bio(to_client, to_server)
        for side in (client, server, client):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
        certificate = client.getpeercert(binary_form=True)
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(f"this TLS context cannot serve: {error}") from error
    if certificate is None:
        raise UsageError("this TLS context shows no certificate: load one into it")
    return certificate
