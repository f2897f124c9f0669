"""`shoal key`: keystores on the command line."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.base.ids import show_node_id
from shoal.cli.app import app
from shoal.identity import ScryptCost, create_keystore, open_keystore, show_peer_id
from tests.cli.test_app import ends, is_refused

PASSPHRASE = "correct horse battery staple"


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the passphrase is."""
    monkeypatch.setenv("SHOAL_TEST_PASSPHRASE", PASSPHRASE)
    monkeypatch.chdir(tmp_path)
    return "env:SHOAL_TEST_PASSPHRASE"


@pytest.fixture
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keystores that take no second to open; test_keystore.py has what others cost."""
    defaults = create_keystore.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "cost", ScryptCost(n=16, r=1, p=1))


def test_a_new_key_is_shown_and_kept_private(
    tmp_path: Path, secret: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends("key", "new", "node.key", "--passphrase", secret) == 0
    made = capsys.readouterr().out
    path = tmp_path / "node.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    key = open_keystore(path, PASSPHRASE)
    assert made.splitlines() == [
        f"address {show_node_id(key.address)}",
        f"peer id {show_peer_id(key.public.peer_id)}",
    ]
    (tmp_path / "passphrase").write_text(PASSPHRASE + "\n")
    assert ends("key", "show", "node.key", "--passphrase", "file:passphrase") == 0
    shown = capsys.readouterr().out
    assert shown == made
    assert key.secret_bytes().hex() not in made + path.read_text()


@pytest.mark.usefixtures("_cheap")
def test_the_wrong_passphrase_is_said_in_one_line(
    tmp_path: Path, secret: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ends("key", "new", "node.key", "--passphrase", secret) == 0
    capsys.readouterr()
    monkeypatch.setenv("SHOAL_TEST_PASSPHRASE", "wrong")
    assert ends("key", "show", "node.key", "--passphrase", secret) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("shoal: ")
    assert printed.err.count("\n") == 1
    assert "the passphrase does not open keystore node.key" in printed.err


def test_a_keystore_is_never_overwritten(
    tmp_path: Path, secret: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "node.key").write_text("precious")
    assert ends("key", "new", "node.key", "--passphrase", secret) == 1
    assert "is not overwritten" in capsys.readouterr().err
    assert (tmp_path / "node.key").read_text() == "precious"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["new", "node.key", "--passphrase", "hunter2"], "write env:NAME or file:PATH"),
        (["new", "node.key", "--passphrase", "env:SHOAL_TEST_UNSET"], "set the variable"),
        (["new", "node.key", "--passphrase", "env:SHOAL_TEST_EMPTY"], "needs a passphrase"),
        (["new", "node.key", "--passphrase", "file:missing"], "No such file"),
        (["show", "missing.key", "--passphrase", "env:SHOAL_TEST_PASSPHRASE"], "missing.key"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(
    tmp_path: Path,
    secret: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    complaint: str,
) -> None:
    monkeypatch.setenv("SHOAL_TEST_EMPTY", "")
    out, err = is_refused(capsys, ["key", *arguments], complaint)
    assert out == ""
    assert "hunter2" not in err
    assert not (tmp_path / "node.key").exists()


@pytest.mark.usefixtures("_cheap")
def test_without_an_option_the_passphrase_is_asked_for(secret: str) -> None:
    runner = CliRunner()
    made = runner.invoke(app, ["key", "new", "node.key"], input=f"{PASSPHRASE}\n{PASSPHRASE}\n")
    assert made.exit_code == 0, made.output
    shown = runner.invoke(app, ["key", "show", "node.key"], input=f"{PASSPHRASE}\n")
    assert shown.exit_code == 0
    assert shown.stdout.split() == made.stdout.split()
    assert PASSPHRASE not in shown.output + made.output
    assert open_keystore(Path("node.key"), PASSPHRASE)
