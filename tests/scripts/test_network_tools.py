"""An iptables under .venv. Nothing here goes to a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import debian, network_tools
from shoal_lab.testbed import namespaces


def test_our_own_is_found_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    debian.write_starters(tmp_path / "network-tools", network_tools.STARTERS)
    monkeypatch.setattr(namespaces, "_SYSTEM_FOLDERS", "")
    monkeypatch.setenv("PATH", "")
    assert namespaces.find_tool("iptables") == str(tmp_path / "network-tools" / "bin" / "iptables")
    assert namespaces.find_tool("no-such-thing") is None
    machine = tmp_path / "sbin"
    machine.mkdir()
    (machine / "iptables").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(machine))
    assert namespaces.find_tool("iptables") == str(machine / "iptables")
