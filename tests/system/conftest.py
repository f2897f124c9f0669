"""Settings of networks whose nodes are all on one machine."""

from __future__ import annotations

import pytest

from tests.node.search import FAST


@pytest.fixture
def fast_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of one machine need not wait as long for each other as those of the world."""
    monkeypatch.setattr("shoal.node.search.client.SearchConfig", FAST)
