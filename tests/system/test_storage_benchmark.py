"""The storage benchmark runs; what it finds is not for a test to judge."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import storage


def test_it_prints_one_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--messages", "1100", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["storage.py", "--json", *options])
    storage.main()
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["what"] for row in printed["rows"]] == [
        "stored, batches of 1",
        "stored, batches of 64",
        "stored, batches of 1024",
        "kept, bursts of 16",
        "kept, bursts of 64",
        "kept, bursts of 1024",
        "kept by a node",
        "resent by range",
        "resent as last n",
        "read as log rows",
    ]
    assert all(row["ratio"] > 0 for row in printed["rows"])
    monkeypatch.setattr(sys, "argv", ["storage.py", *options])
    storage.main()
    assert "ratio" in capsys.readouterr().out
