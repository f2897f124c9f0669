"""The gateway of a real process, as curl and strangers use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from shoal.gateway.api_keys import LOOK_AGAIN_S
from tests.system.processes import PATIENCE_S, Running, run

ROOT = Path(__file__).parents[2]
STREAM = "0x" + "ab" * 20 + "/city/vehicles"
EVERYTHING = """
[tracker]
[dht]
[search]
[gateway]
"""
FUZZING = """
suppress-health-check = ["all"]

[[operations]]
include-path = "/search"
parameters = { "query.within" = 0.2 }

[[operations]]  # a document that is not there takes three seconds to be sure of
include-path-regex = "^/documents"
generation.max-examples = 2
"""


def address_of(node: Running) -> str:
    """Where the gateway of `shoal serve` is."""
    node.wait_for(lambda: any(line.startswith("[[trackers]]") for line in node.out))
    (line,) = [line for line in node.out if line.startswith("# gateway ")]
    return line.removeprefix("# gateway ")


def curl(*arguments: str) -> str:
    done = subprocess.run(
        ["curl", "-sS", *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    return done.stdout


def test_curl_publishes_and_hears_with_a_key(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text('[tracker]\n[gateway]\nkeys = "gateway.keys"\n')
    scopes = ("--scope", "read", "--scope", "publish")
    made = run("gateway", "key", "new", "vehicles", *scopes, "--stream", "0xab*", folder=tmp_path)
    key = made.stdout.strip()
    assert key.startswith("shoal_"), made.stderr
    with Running("serve", folder=tmp_path) as node:
        at = f"{address_of(node)}/streams/{STREAM}"
        allowed = ("-H", f"Authorization: Bearer {key}")
        live = ("-sSN", "--max-time", str(PATIENCE_S), f"{at}/live?api_key={key}")
        with Running(*live, command=["curl"]) as listener:
            listener.wait_for(lambda: ": welcome" in listener.out)
            kind = ("-H", "Content-Type: application/json")
            answer = curl(*allowed, *kind, "-d", '{"speed": 8.3}', f"{at}/messages")
            (place,) = json.loads(answer)["messages"]
            listener.wait_for(lambda: any(line.startswith("data: ") for line in listener.out))
            (data,) = [line for line in listener.out if line.startswith("data: ")]
            message = json.loads(data.removeprefix("data: "))
        assert message["content"] == {"speed": 8.3}
        assert message["timestamp_ms"] == place["timestamp_ms"]
        refused = json.loads(curl("-d", "1", f"{at}/messages"))
        assert "send `Authorization: Bearer KEY`" in refused["error"]
        id = key.split("_")[1]
        assert id in run("gateway", "key", "list", folder=tmp_path).stdout
        assert run("gateway", "key", "revoke", id, folder=tmp_path).returncode == 0
        # A running gateway looks at the file once a second.
        time.sleep(LOOK_AGAIN_S)
        assert "this is no key" in curl(*allowed, "-d", "1", f"{at}/messages")


def test_a_gateway_beyond_loopback_without_keys_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text('[tracker]\n[gateway]\nlisten = "0.0.0.0:0"\n')
    done = run("serve", folder=tmp_path)
    assert done.returncode == 2
    assert "beyond loopback" in done.stderr
    assert "open_to_all = true" in done.stderr


def test_nothing_that_strangers_send_is_a_server_error(tmp_path: Path) -> None:
    """Schemathesis makes requests of the OpenAPI document. What never ends is left out: live.py has
    tests of its own."""
    (tmp_path / "shoal.toml").write_text(EVERYTHING)
    (tmp_path / "fuzzing.toml").write_text(FUZZING)
    with Running("serve", folder=tmp_path) as node:
        options = {
            "--checks": "not_a_server_error",
            "--exclude-path-regex": "live$|^/ws",
            "--max-examples": "4",
            "--workers": "8",
            "--request-timeout": "20",
            "--phases": "fuzzing",
            "--seed": "7",
        }
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "--config-file", "fuzzing.toml"),
                *("run", f"{address_of(node)}/openapi.json", "--no-color"),
                *[word for option in options.items() for word in option],
            ],
            cwd=tmp_path,
            # What other tests have worked out about Unicode takes half a minute otherwise.
            env={**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(ROOT / ".hypothesis")},
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
        )
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr
        # What a failed start would look like: nothing was asked.
        counted = [line.split() for line in done.stdout.splitlines() if " passed" in line]
        assert int(counted[-1][0]) > 60
        assert node.process.poll() is None
