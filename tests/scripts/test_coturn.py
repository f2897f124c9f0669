"""A coturn under .venv. Nothing here goes to a network."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts import coturn


def test_what_was_unpacked_is_started_with_its_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(work: Path, packages: object) -> list[Path]:
        program = tmp_path / "debian" / "usr" / "bin" / "turnserver"
        libraries = tmp_path / "debian" / "usr" / "lib" / "some-machine"
        libraries.mkdir(parents=True)
        (libraries / "libmariadb.so.3").touch()
        program.parent.mkdir(parents=True)
        program.write_text('#!/bin/sh\necho "$LD_LIBRARY_PATH" "$@"\n')
        program.chmod(0o755)
        return []

    monkeypatch.setattr(coturn, "download", download)
    coturn.fetch(tmp_path)
    said = subprocess.check_output([tmp_path / "bin" / "turnserver", "-n", "a b"], text=True)
    assert said == f"{tmp_path}/debian/usr/lib/some-machine -n a b\n"


def test_none_is_fetched_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coturn, "find_turnserver", lambda: "/usr/bin/turnserver")
    monkeypatch.setattr(coturn, "fetch", lambda folder: pytest.fail("fetched"))
    coturn.main()


def test_a_failure_is_told_and_no_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(folder: Path) -> None:
        raise OSError("no Debian here")

    monkeypatch.setattr(coturn, "find_turnserver", lambda: None)
    monkeypatch.setattr(coturn, "fetch", fail)
    coturn.main()
    assert "none could be fetched (no Debian here)" in capsys.readouterr().err
