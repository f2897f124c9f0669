"""The benchmarks over sockets run; what they find is not for a test to judge."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import delivery

ROOT = Path(__file__).parents[2]


def test_a_tiny_relay_has_figures() -> None:
    result = run("benchmarks/relay.py", "--seconds", "0.1", "--repeat", "1", "--window", "8")
    assert result["sinks"] == 3
    assert result["message_bytes"] > result["payload_bytes"] == 300
    for kind in ("verified", "unverified", "echo", "echo_joined"):
        assert min(result[kind].values()) > 0
    assert result["echo_joined"]["ratio"] == 1


def test_a_tiny_overlay_has_figures() -> None:
    result = run("benchmarks/delivery.py", "--no-gossipsub", "--messages", "20", "--repeat", "1")
    assert (result["nodes"], result["degree"], result["payload_bytes"]) == (16, 4, 300)
    assert [row["publishers"] for row in result["rows"]] == [1, 16]
    for row in result["rows"]:
        assert row["ours"]["delivered_share"] == 1
        assert min(row["ours"].values()) > 0
        assert min(row["verify_us"], row["verifies_per_cpu_second"], row["over_verify"]) > 0
        assert (row["gossipsub"], row["ratio"]) == (None, None)


def test_a_few_calls_have_figures() -> None:
    result = run("benchmarks/webrtc_links.py", "--nodes", "6", "--messages", "20", "--links", "3")
    for kind in ("ws", "webrtc"):
        assert min(result[kind].values()) > 0


def test_a_few_sealed_messages_have_figures() -> None:
    result = run("benchmarks/encryption.py", "--messages", "20", "--rounds", "1")
    assert len(result) == 6
    assert min(result.values()) > 0


def test_a_few_subscribers_have_figures() -> None:
    result = run("benchmarks/gateway.py", "--subscribers", "20", "--messages", "2")
    for kind in ("events", "websocket"):
        row = result[kind]
        assert (row["subscribers"], row["complete"], row["lost"]) == (20, 20, 0)
        assert 0 < row["first_s"] <= row["last_s"]


def test_a_tiny_topic_has_figures() -> None:
    result = run("benchmarks/topics.py", "--events", "16", "--repeat", "1")
    assert min(result.values()) > 0
    assert result["delivery_us"] <= result["stored_us"]


@pytest.mark.parametrize(
    "shape", [("--nodes", "24", "--size", "532480"), ("--nodes", "25", "--simulated")]
)
def test_a_tiny_dht_has_figures(shape: tuple[str, ...]) -> None:
    result = run("benchmarks/dht.py", "--count", "3", *shape)
    assert {"put, first", "put, all", "get, hit", "get, miss"} < result["rows"].keys()
    for row in result["rows"].values():
        assert 0 < row["median_ms"] <= row["p95_ms"]
        assert row["cpu_ms"] > 0


def test_without_npm_the_other_side_is_missing_and_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(delivery, "GOSSIPSUB", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    arguments = ["--messages", "5", "--repeat", "1"]
    monkeypatch.setattr(sys, "argv", ["delivery.py", *arguments])
    delivery.main()
    assert "gossipsub is missing: npm is not installed" in capsys.readouterr().out
    (tmp_path / "npm").write_text("#!/bin/sh\necho 'npm error no network' >&2\nexit 1\n")
    (tmp_path / "npm").chmod(0o755)
    monkeypatch.setattr(sys, "argv", ["delivery.py", "--json", *arguments])
    delivery.main()
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "npm error no network" in printed["gossipsub_missing"]
    assert [row["gossipsub"] for row in printed["rows"]] == [None, None]


def run(*command: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, *command, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_a_tiny_first_message_has_figures() -> None:
    few = ("--repeat", "2", "--resends", "1", "--nodes", "2", "--rows", "300")
    result = run("benchmarks/first_message.py", *few)
    assert (result["nodes"], result["repeat"], result["resend_rows"]) == (2, 2, 300)
    for kind in ("first_message", "bare_connect", "last_100"):
        assert min(result[kind].values()) > 0
        assert result[kind]["wall_ms"] <= result[kind]["wall_ms_max"]
    assert result["resend_rows_per_cpu_second"] > 0
    assert 0 < result["resend_over_verify"] < 1, "each row has a signature that was checked"
