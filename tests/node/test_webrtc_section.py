"""[webrtc] in a network file: what is asked of whom, and nothing unless it is named."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from shoal.base.errors import ConfigError
from shoal.config.network_file import load_network_file
from shoal.config.sections import WebRTCSection
from shoal.node import Node
from shoal.protocols.streams import messages
from shoal.transport import webrtc_signals

TRACKER = """
[[trackers]]
id = "0x7e5f4552091a69125d5dfcb7b8c2659029395bdf"
addresses = ["ws://127.0.0.1:7700"]
"""
CALLED = '[node]\nlisten = ["webrtc:"]\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "shoal.toml"
    path.write_text(text)
    return path


def test_no_server_is_named_unless_somebody_does(tmp_path: Path) -> None:
    network = load_network_file(written(tmp_path, CALLED + "[webrtc]\n"))
    assert network.webrtc == WebRTCSection(stun=(), turn=(), user=None, password=None)
    assert network.node.listen == ("webrtc:",)
    assert load_network_file(written(tmp_path, "")).webrtc is None


def test_servers_are_read(tmp_path: Path) -> None:
    text = """
    [webrtc]
    stun = ["stun:192.0.2.1:3478", "stuns:stun.example.org"]
    turn = ["turn:[2001:db8::1]:3478?transport=tcp"]
    user = "me"
    password = "env:TURN_PASSWORD"
    """
    section = load_network_file(written(tmp_path, text)).webrtc
    assert section is not None
    assert section.turn == ("turn:[2001:db8::1]:3478?transport=tcp",)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (CALLED, r"calls need WebRTC: add \[webrtc\]"),
        ('[webrtc]\nstun = ["turn:a:1"]', "write stun:HOST:PORT"),
        ('[webrtc]\nstun = ["a"]', "write stun:HOST:PORT"),
        ('[webrtc]\nturn = ["turn:a:1/x"]', "write turn:HOST:PORT"),
        ('[webrtc]\nturn = ["turn:a:1"]', "wants a user and a password"),
        ('[webrtc]\nturn = ["turn:a"]\nuser = "u"\npassword = "hunter2"', "env:NAME or file:PATH"),
        ('[node]\nlisten = ["webrtc:x"]\n[webrtc]', "write ws://HOST:PORT"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        load_network_file(written(tmp_path, text))
    assert "hunter2" not in str(caught.value)


def test_calls_need_a_tracker(tmp_path: Path) -> None:
    async def main() -> None:
        async with Node.open(written(tmp_path, "[webrtc]\n")):
            raise AssertionError("it opened")

    with pytest.raises(ConfigError, match=r"through a tracker: add \[\[trackers\]\]"):
        asyncio.run(main())


def test_without_the_extra_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "webrtc", None)
    monkeypatch.delitem(sys.modules, "shoal.transport.webrtc", raising=False)
    monkeypatch.delitem(sys.modules, "shoal.transport.webrtc_channel", raising=False)

    async def main() -> None:
        async with Node.open(written(tmp_path, "[webrtc]\n" + TRACKER)):
            raise AssertionError("it opened")

    with pytest.raises(ConfigError, match=r"pip install 'shoal\[webrtc\]'"):
        asyncio.run(main())


def test_what_a_transport_says_goes_through_a_tracker() -> None:
    assert webrtc_signals.SIGNAL_BYTES_MAX <= messages.SIGNAL_BYTES_MAX
