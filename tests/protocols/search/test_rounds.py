"""Numbers of rounds."""

from __future__ import annotations

import pytest

from shoal.protocols.search.config import UINT32_MAX
from shoal.protocols.search.measuring.measurement import is_newer, next_round


def test_zero_is_never_used() -> None:
    assert next_round(1) == 2
    assert next_round(UINT32_MAX) == 1


@pytest.mark.parametrize(
    ("seen", "current", "newer"),
    [
        (6, 5, True),
        (5, 5, False),
        (4, 5, False),
        (5 + 65_536, 5, True),
        (5 + 65_537, 5, False),
        (1, UINT32_MAX, True),
        (UINT32_MAX, 1, False),
        (0, 5, False),
        (0, 0, False),
        (1, 0, True),
        (3_000_000_000, 0, True),
    ],
)
def test_which_round_is_newer(seen: int, current: int, newer: bool) -> None:
    assert is_newer(seen, current) is newer
