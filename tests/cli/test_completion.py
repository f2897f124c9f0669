"""`shoal completion`: real shells take the script, and are answered."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.cli.test_app import ends
from tests.system.processes import SHOAL


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("completion", shell) == 0
    script = capsys.readouterr().out
    assert f"_SHOAL_COMPLETE=complete_{shell}" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=30)


def test_bash_is_told_what_fits() -> None:
    asked = {"COMP_WORDS": "shoal stream re", "COMP_CWORD": "2", "_SHOAL_COMPLETE": "complete_bash"}
    done = subprocess.run(
        SHOAL, env={**os.environ, **asked}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["revoke", "resend"]


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("completion", "dos") == 2
    assert "--help" in capsys.readouterr().err
