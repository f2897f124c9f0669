"""`shoal demo` with Spark: from vehicles over the network and Spark to alerts at a subscriber."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.system.processes import SHOAL

pytestmark = pytest.mark.spark

PATIENCE_S = 400.0  # a Java and a dozen interpreters, on a machine with other things to do
RATE, SECONDS, NODES = 60, 5, 3


def test_from_vehicle_to_alert_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    options = {"--seconds": SECONDS, "--nodes": NODES, "--processes": 1, "--rate": RATE}
    words = [str(word) for option in options.items() for word in option]
    done = subprocess.run(
        [*SHOAL, "demo", *words, "--json"],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    summary = json.loads(line)
    published, pipeline = summary["published"], summary["pipeline"]
    assert 1 <= published <= RATE * SECONDS
    assert summary["expected"] == summary["delivered"] == published * (NODES - 1)
    assert (summary["lost"], summary["double"], summary["invented"]) == (0, 0, 0)
    assert pipeline["rows"] == published, "Spark has read every message once"
    assert pipeline["alerts"] == pipeline["alerts_delivered"] > 0
    assert not any(pipeline[f"alerts_{what}"] for what in ("lost", "double", "invented"))
    assert 0 < pipeline["delay_ms"]["p50"] <= pipeline["delay_ms"]["p99"]
    assert pipeline["speeds"] > 0
    assert "fleet's stream: --servers http://127.0.0.1:" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("shoal-demo-*")), "its folder is gone"
