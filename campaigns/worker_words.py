"""What campaigns over sockets and their worker processes tell each other, whatever the nodes do: a
JSON object a line, over pipes. Nodes are numbers."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from shoal.config.sections import PeerEntry

N = TypeVar("N")


class NodeWork(msgspec.Struct, frozen=True):
    """One node of a worker."""

    number: int
    name: str
    """Its key is made from it."""
    listen: str
    bootstrap: tuple[PeerEntry, ...]
    folder: str


class Work(msgspec.Struct, frozen=True):
    """To a worker, once: be these nodes."""

    nodes: tuple[NodeWork, ...]


class Look(msgspec.Struct, frozen=True, tag=True):
    """To a worker: say your Figures."""


class Opened(msgspec.Struct, frozen=True, tag=True):
    """From a worker: all nodes run; who they are, as peers know them."""

    ids: dict[int, str]


class Figures(msgspec.Struct, Generic[N], frozen=True, tag=True):
    """From a worker: what it counted since its start, without what the interpreter and its imports
    took before the first node was there."""

    nodes: tuple[N, ...]
    cpu_s: float
    memory_bytes: int
    bare_bytes: int
    """What was resident before."""
