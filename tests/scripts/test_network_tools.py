"""An iptables under .venv. Nothing here goes to a network."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts import network_tools
from shoal.lab.loss import tools


def test_what_was_unpacked_is_started_with_its_libraries(tmp_path: Path) -> None:
    program = tmp_path / "debian" / "usr" / "sbin" / "xtables-nft-multi"
    libraries = tmp_path / "debian" / "usr" / "lib" / "some-machine"
    (libraries / "xtables").mkdir(parents=True)
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "$LD_LIBRARY_PATH" "$XTABLES_LIBDIR" "$@"\n')
    program.chmod(0o755)
    network_tools.write_starter(tmp_path)
    said = subprocess.check_output([tmp_path / "bin" / "iptables", "-L", "a b"], text=True)
    assert said.split(maxsplit=2) == [
        str(libraries), str(libraries / "xtables"), "iptables -L a b\n",
    ]  # fmt: skip


def test_our_own_is_found_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    (tmp_path / "network-tools").mkdir()
    network_tools.write_starter(tmp_path / "network-tools")
    monkeypatch.setattr(tools, "_SYSTEM_FOLDERS", "")
    monkeypatch.setenv("PATH", "")
    assert tools.find_tool("iptables") == str(tmp_path / "network-tools" / "bin" / "iptables")
    assert tools.find_tool("no-such-thing") is None
    machine = tmp_path / "sbin"
    machine.mkdir()
    (machine / "iptables").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(machine))
    assert tools.find_tool("iptables") == str(machine / "iptables")


def test_none_is_fetched_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_tools, "find_tool", lambda name: "/sbin/iptables")
    monkeypatch.setattr(network_tools, "fetch", lambda folder: pytest.fail("fetched"))
    network_tools.main()


def test_a_failure_is_told_and_no_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(folder: Path) -> None:
        raise OSError("no Debian here")

    monkeypatch.setattr(network_tools, "find_tool", lambda name: None)
    monkeypatch.setattr(network_tools, "fetch", fail)
    network_tools.main()
    assert "none could be fetched (no Debian here)" in capsys.readouterr().err
