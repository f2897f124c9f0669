"""Randomness from names: each part of a simulation draws from a generator of its own."""

from __future__ import annotations

import hashlib
from random import Random


def stable_seed(seed: int, *names: object) -> int:
    """A number that depends on seed and names only: not on Python's hash seed, nor on what
    other parts of the simulation drew before."""
    text = "\x1f".join([str(seed), *map(str, names)])  # no name contains it
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest())


def stable_random(seed: int, *names: object) -> Random:
    """A generator for one part of a simulation."""
    return Random(stable_seed(seed, *names))
