"""The command itself: what it prints where, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable

import pytest

from shoal import __version__
from shoal.base.errors import InvariantViolated
from shoal.cli import main
from shoal_lab.testbed import simulated


def ends(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    code = caught.value.code
    return code if isinstance(code, int) else int(code is not None)


def is_refused(
    capsys: pytest.CaptureFixture[str], arguments: Iterable[str], complaint: str
) -> tuple[str, str]:
    """A command that is misused ends with exit code 2, and one line that says why; at most it has
    said before what it is about to do. What it printed, and that."""
    assert ends(*arguments) == 2
    printed = capsys.readouterr()
    *before, line = printed.err.splitlines()
    assert line.startswith("shoal: ")
    assert complaint in line
    assert all(said.startswith("publishing to ") for said in before)
    return printed.out, printed.err


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("--version") == 0
    assert capsys.readouterr().out == f"shoal {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [["lab", "run"], ["lab", "fly"], ["lab", "run", "streams-smoke", "--seed", "-1"]],
)
def test_misuse_is_explained(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert ends(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "--help" in printed.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["streams-smok"], "did you mean streams-smoke?"),
        (["missing.toml"], "no scenario file missing.toml"),
        (["streams-smoke", "--set", "network.nodes=0"], "network.nodes = 0: expected `int` >= 1"),
        (["streams-smoke", "--set", "network.nodes"], "write KEY=VALUE"),
        (["streams-smoke", "--set", "network.delays=mars"], "no delay table 'mars'"),
    ],
)
def test_a_wrong_setting_is_one_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = is_refused(capsys, ["lab", "run", *arguments], complaint)
    assert out == ""


def test_a_failed_check_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Planted:
        def step(self, *given: object) -> None:
            raise InvariantViolated("planted")

        def quiet(self, *given: object) -> None:
            """Never reached."""

    monkeypatch.setattr(simulated, "safety_checkers", lambda: [Planted()])
    assert ends("lab", "run", "streams-smoke", "--seed", "9", "--wire", "--json") == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["failure"] in printed.err
    assert "seed 9, t = 0.000000 s: InvariantViolated: planted" in printed.err
    replay = "replay: shoal lab run streams-smoke --seed 9 --set network.wire=true"
    assert printed.err.splitlines()[-1] == replay


@pytest.mark.parametrize(
    ("needed", "not_needed"),
    [
        ("shoal.cli.app", ["numpy", "rich.table", "coincurve", "shoal.sim"]),
        ("shoal.node", ["numpy", "pyarrow", "aiohttp", "pyrevm"]),
        ("shoal.gateway.server, shoal.explorer", ["numpy", "pyarrow", "pyrevm"]),
    ],
    ids=["command", "node", "gateway"],
)
def test_starting_up_is_quick(needed: str, not_needed: list[str]) -> None:
    """What takes long to import is not imported for a command that does not need it."""
    source = f"import sys, {needed}; print(*sorted({set(not_needed)} & {{*sys.modules}}))"
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert run.stdout == "\n"
