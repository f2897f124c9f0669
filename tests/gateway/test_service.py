"""The systemd unit."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

UNIT = Path(__file__).parents[2] / "packaging" / "shoal.service"


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text()
    verbs = {"ExecStart=/usr/local/bin/shoal serve --config /etc/shoal/shoal.toml"}
    assert verbs <= set(text.splitlines())
    analyze = shutil.which("systemd-analyze")
    if analyze is None:  # nobody who runs it by systemd: what can be said without it is above
        return
    # It looks for the command that is started: here that is another one.
    unit = tmp_path / UNIT.name
    unit.write_text(text.replace("/usr/local/bin/shoal", "/bin/sh"))
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, "")
