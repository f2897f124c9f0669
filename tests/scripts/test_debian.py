"""Debian's programs under .venv. Nothing here goes to a network."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scripts import coturn, debian, faketime, mosquitto, network_tools

PROGRAMS = {
    "iptables": (network_tools, "usr/sbin/xtables-nft-multi", "xtables/x.so", " iptables"),
    "turnserver": (coturn, "usr/bin/turnserver", "libmariadb.so.3", ""),
    "mosquitto": (mosquitto, "usr/sbin/mosquitto", "libmosquitto.so.1", ""),
    "mosquitto_pub": (mosquitto, "usr/bin/mosquitto_pub", "libmosquitto.so.1", ""),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_was_unpacked_is_started_with_its_libraries(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, place, library, first = PROGRAMS[name]
    program = tmp_path / "debian" / place
    libraries = tmp_path / "debian" / "usr" / "lib" / "some-machine"

    def download(work: Path, packages: Sequence[str]) -> list[Path]:
        (libraries / library).parent.mkdir(parents=True)
        (libraries / library).touch()
        program.parent.mkdir(parents=True)
        program.write_text('#!/bin/sh\necho "$LD_LIBRARY_PATH" "$@"\n')
        program.chmod(0o755)
        return []

    monkeypatch.setattr(debian, "download", download)
    debian.unpack(tmp_path, script.PACKAGES, script.STARTERS)
    said = subprocess.check_output([tmp_path / "bin" / name, "-n", "a b"], text=True)
    assert said == f"{libraries}{first} -n a b\n"


def test_our_own_is_found_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, machine = tmp_path / "own", tmp_path / "machine"
    debian.write_starters(own, {"some-program": "#!/bin/sh\n"})
    monkeypatch.setenv("PATH", str(machine))
    assert debian.find_program("some-program", own) == str(own / "bin" / "some-program")
    assert debian.find_program("no-such-program", own) is None
    machine.mkdir()
    (machine / "some-program").symlink_to("/bin/true")
    assert debian.find_program("some-program", own) == str(machine / "some-program")


@pytest.mark.parametrize(
    ("script", "find"),
    [
        (network_tools, "find_tool"),
        (coturn, "find_turnserver"),
        (mosquitto, "find_command"),
        (faketime, "find_faketime"),
    ],
)
def test_none_is_fetched_where_there_is_one(
    script: Any, find: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, find, lambda *name: "/usr/bin/it")
    monkeypatch.setattr(script, "fetch", lambda *what: pytest.fail("fetched"))
    script.main()


def test_a_failure_is_told_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(work: Path, packages: Sequence[str]) -> list[Path]:
        raise OSError("no Debian here")

    monkeypatch.setattr(debian, "download", fail)
    debian.fetch("coturn", tmp_path / "own", coturn.PACKAGES, coturn.STARTERS)
    said = capsys.readouterr().err
    assert "there is no coturn" in said
    assert "none could be fetched (no Debian here)" in said
    assert not (tmp_path / "own" / "bin").exists()
