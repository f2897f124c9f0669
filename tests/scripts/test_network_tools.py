"""An iptables under .venv. Nothing here goes to a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import debian, network_tools
from shoal.lab.loss import tools


def test_our_own_is_found_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    debian.write_starters(tmp_path / "network-tools", network_tools.STARTERS)
    monkeypatch.setattr(tools, "_SYSTEM_FOLDERS", "")
    monkeypatch.setenv("PATH", "")
    assert tools.find_tool("iptables") == str(tmp_path / "network-tools" / "bin" / "iptables")
    assert tools.find_tool("no-such-thing") is None
    machine = tmp_path / "sbin"
    machine.mkdir()
    (machine / "iptables").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(machine))
    assert tools.find_tool("iptables") == str(machine / "iptables")
