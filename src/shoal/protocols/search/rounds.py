"""Numbers of measurement rounds: 32 bits that wrap, and 0 for whoever knows of none (2.2.5)."""

from __future__ import annotations

from shoal.protocols.search.limits import UINT32_MAX

NO_ROUND = 0
FIRST_ROUND = 1
AHEAD_MAX = 1 << 16  # whoever is further ahead is taken for behind


def next_round(current: int) -> int:
    """The round after this one."""
    return FIRST_ROUND if current >= UINT32_MAX else current + 1


def is_newer(seen: int, current: int) -> bool:
    """Whether a round that somebody else is in begins here, too. Whoever knows of no round takes
    any: the printed rule would keep newcomers out once 65,536 rounds are over."""
    if seen in (NO_ROUND, current):
        return False
    return current == NO_ROUND or (seen - current) % (UINT32_MAX + 1) <= AHEAD_MAX
