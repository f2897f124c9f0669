"""System clocks of real processes are set. The long form is campaigns/clock_steps.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaigns import clock_steps
from scripts.faketime import find_faketime


@pytest.mark.skipif(find_faketime() is None, reason="python -m scripts.faketime fetches it")
def test_wrong_clocks_of_a_publisher_and_a_storage_node_lose_nothing(tmp_path: Path) -> None:
    steps = [("publisher", 30 * 86_400), ("storage", 31 * 86_400)]
    result = clock_steps.run(tmp_path, steps, lasts_s=5)
    assert result["acknowledged"] > 20
    assert result["refused"] > 2
