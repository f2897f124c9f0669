"""Which packages a Chromium needs on this machine, by what apt-get says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts import chromium

SAID = """\
Reading package lists...
The following NEW packages will be installed:
  chromium libflac12
Inst libflac12 (1.4.2+ds-2 Debian:12.13/oldstable [amd64])
Inst chromium [149.0-1] (150.0.7871.100-1~deb12u1 Debian-Security:12/oldstable-security [amd64])
Conf libflac12 (1.4.2+ds-2 Debian:12.13/oldstable [amd64])
"""


def test_the_packages_that_would_be_installed_are_fetched() -> None:
    assert chromium.missing_packages(SAID) == ["libflac12", "chromium"]
    assert chromium.missing_packages("E: Unable to locate package chromium\n") == []


def test_the_unpacked_one_is_started_with_what_lies_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "chromium"
    program = folder / "debian" / "usr" / "lib" / "chromium" / "chromium"
    libraries = folder / "debian" / "usr" / "lib" / "x86_64-linux-gnu"
    for made in (program.parent, libraries, folder / "bin"):
        made.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "$LD_LIBRARY_PATH $XDG_CACHE_HOME $FONTCONFIG_FILE $1"\n')
    starter = folder / "bin" / "chromium"
    starter.write_text(chromium.STARTER)
    for file in (program, starter):
        file.chmod(0o755)
    said = subprocess.run([starter, "--x"], capture_output=True, text=True, check=True).stdout
    assert str(libraries) in said
    assert f"{folder}/cache {folder}/fonts.conf --x" in said  # and no cache where it is started


def test_what_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(chromium, "own_folder", lambda: tmp_path)
    with pytest.raises(FileNotFoundError, match="apt install chromium"):
        chromium.find_chromium()
    own = tmp_path / "bin" / "chromium"
    own.parent.mkdir()
    own.touch()
    assert chromium.find_chromium() == own
