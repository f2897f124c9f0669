"""Settings that older runs do not mention, since there was no choice then.

A run that has one of them as it always was is the same run, by name and as a repeat of others.
"""

from __future__ import annotations

from typing import Any

OLD_SETTINGS: dict[str, Any] = {
    "on": "simulator",
    "network.policy": "random",
    "network.redundant_feeds": "all",
    "network.liars": 0.0,
    "network.lie": "near",
}
"""What they were, by dotted name."""
