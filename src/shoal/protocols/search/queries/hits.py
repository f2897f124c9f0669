"""What an index answers."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Hit(NamedTuple, Generic[Key]):
    """A document that matches, and how well."""

    key: Key
    score: float
