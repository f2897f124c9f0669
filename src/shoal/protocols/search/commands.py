"""What the application on a node says to search, and what it hears."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import msgspec

from shoal.base.ids import Contact, NodeId
from shoal.protocols.search.documents.document import DOCUMENTS, Document, Life
from shoal.protocols.search.spaces import Space

# The network


class Leave(msgspec.Struct, frozen=True, gc=False):
    """Leave the network in good order; answered by Left."""


class Left(msgspec.Struct, frozen=True, gc=False):
    """Told: we have."""


class Joined(msgspec.Struct, frozen=True, gc=False):
    """Told once: this node has a place, or a host, and knows how large the network is."""


class Meet(msgspec.Struct, frozen=True, gc=False):
    """Nodes through which the network may be entered, beside those known at the start."""

    contacts: tuple[Contact, ...]


# Documents


class PutDocument(msgspec.Struct, frozen=True, gc=False):
    """Have a document found by others, in place of one of the same name; answered by
    DocumentPut."""

    name: str
    content: Mapping[str, Any] | bytes | None
    """None: delete it."""
    life: Life
    life_ns: int
    """Until it expires, unless this node manages it."""
    kind: str = "document"
    """Or the space of an application, whose content is bytes."""


class DocumentPut(msgspec.Struct, frozen=True, gc=False):
    """Told: it is on its way to so many nodes."""

    document: Document
    nodes: int
    token: Hashable


# Searches


class FindDocuments(msgspec.Struct, frozen=True, gc=False):
    """Search the network; answered by Found for each document, and by SearchOver."""

    text: str | bytes
    """Bytes in a space of an application."""
    confidence: float
    limit: int | None
    """Enough, if so many were found."""
    within_ns: int
    id: bytes | None = None
    """This document alone, its newest version and its deletion, too, whatever the text says."""
    space: str = DOCUMENTS


class StopSearch(msgspec.Struct, frozen=True, gc=False):
    """Nobody waits for it any more; the token is that of FindDocuments."""


class Found(msgspec.Struct, frozen=True, gc=False):
    """Told: a document that matches, its signature checked."""

    document: Document
    score: float
    token: Hashable


class SearchWidened(msgspec.Struct, frozen=True, gc=False):
    """Told: more nodes are being asked; how sure we will be once they had time to answer."""

    confidence: float
    asked: int
    nodes: float
    token: Hashable


class SearchOver(msgspec.Struct, frozen=True, gc=False):
    """Told: how sure we are now, how many nodes were asked, and how many the network has."""

    confidence: float
    asked: int
    nodes: float
    token: Hashable


# Standing queries


class WatchDocuments(msgspec.Struct, frozen=True, gc=False):
    """Be told of documents that match, from now on until Unwatch; answered by Seen."""

    text: str | bytes
    space: str = DOCUMENTS


class Unwatch(msgspec.Struct, frozen=True, gc=False):
    """No more; the token is that of WatchDocuments."""


class Seen(msgspec.Struct, frozen=True, gc=False):
    """Told: a document that a standing query has met, its signature checked."""

    document: Document
    token: Hashable
    gap_before: bool = False
    """Nodes that had the query were lost since the last one was told: what passed by meanwhile may
    be missing. What is kept in the network was searched for again."""


# Spaces


class OpenSpace(msgspec.Struct, frozen=True, gc=False):
    """Take part in a space of an application, from now on until the end."""

    space: Space


# Measurement


class Contribute(msgspec.Struct, frozen=True, gc=False):
    """What this node adds to a column that is measured over the whole network; None: nothing more.
    `column` is s:name for a sum, min:name or max:name."""

    column: str
    value: float | None


# User connections


class ListenUser(msgspec.Struct, frozen=True, gc=False):
    """Accept connections of a type, or no more."""

    type: str
    accept: bool = True


class ConnectUser(msgspec.Struct, frozen=True, gc=False):
    """Open a connection; answered by UserOpened or UserRefused."""

    contact: Contact
    type: str


class SendUser(msgspec.Struct, frozen=True, gc=False):
    """Say something to the other end."""

    peer: NodeId
    number: int
    content: bytes


class CloseUser(msgspec.Struct, frozen=True, gc=False):
    """End a connection."""

    peer: NodeId
    number: int


class UserOpened(msgspec.Struct, frozen=True, gc=False):
    """Told: the other end has accepted."""

    peer: NodeId
    number: int
    token: Hashable


class UserRefused(msgspec.Struct, frozen=True, gc=False):
    """Told: it has not."""

    reason: str
    token: Hashable


class UserArrived(msgspec.Struct, frozen=True, gc=False):
    """Told: somebody has opened a connection of a type that we listen to."""

    peer: NodeId
    number: int
    type: str


class UserReceived(msgspec.Struct, frozen=True, gc=False):
    """Told: the other end has said something."""

    peer: NodeId
    number: int
    content: bytes


class UserClosed(msgspec.Struct, frozen=True, gc=False):
    """Told: a connection has ended, by the other end or with its link."""

    peer: NodeId
    number: int
