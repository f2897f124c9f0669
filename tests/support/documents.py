"""Signed documents of a few owners, for tests of what keeps them."""

from __future__ import annotations

from typing import Any

from shoal.base.units import MS_NS, S_NS
from shoal.identity import PrivateKey, SeededEntropy
from shoal.protocols.search.documents.document import Document, Life, sign_document
from shoal.protocols.search.spaces import DocumentSpace, Spaces

ALICE, BOB, EVE = (PrivateKey.generate(SeededEntropy(name)) for name in ("alice", "bob", "eve"))
LIFE_NS = 3600 * S_NS
SPACES = Spaces(DocumentSpace())


def a_document(
    owner: PrivateKey = ALICE,
    name: str = "a",
    content: dict[str, Any] | bytes | None = None,
    *,
    version: int = 1,
    life: Life = "fading",
    expires_ns: int = LIFE_NS,
    kind: str = "document",
    deleted: bool = False,
) -> Document:
    """A document that says something, unless told otherwise."""
    said: dict[str, Any] | bytes | None = (
        {"title": f"air in {name}"} if content is None else content
    )
    return sign_document(
        owner,
        name,
        None if deleted else said,
        version=version,
        life=life,
        expires_ms=expires_ns // MS_NS,
        kind=kind,
    )
