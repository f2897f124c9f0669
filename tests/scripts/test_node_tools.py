"""Programs from PyPI and npm under .venv. Nothing here goes to a network."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scripts import contract_tools, web_build
from scripts.node_tools import NODE, PACKAGE_FILES, NodeTools, pinned

PINS = f"vyper==1 \\\n    --hash=sha256:aa\n{NODE}==2 \\\n    --hash=sha256:bb\nwheel==3\n"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeTools:
    """A folder that is to be."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    (tmp_path / "web").mkdir()
    for name in PACKAGE_FILES:
        (tmp_path / "web" / name).write_text(name)
    return NodeTools("our-tools", "a page", PINS, tmp_path / "web")


@pytest.fixture
def called(tools: NodeTools, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is run in place of commands."""
    commands: list[str] = []

    def call(self: NodeTools, command: Sequence[str | Path], *more: Any) -> None:
        tools.folder.mkdir(parents=True, exist_ok=True)
        commands.append(" ".join(map(str, command)))

    monkeypatch.setattr(NodeTools, "call", call)
    return commands


def test_what_is_pinned_is_fetched_once(tools: NodeTools, called: list[str]) -> None:
    assert not tools.is_complete()
    tools.prepare(keep_node=True)
    venv, pip, npm = called
    assert venv.endswith(f"-m venv {tools.folder / 'python'}")
    assert f"--require-hashes -r {tools.folder / 'requirements.txt'}" in pip
    assert (tools.folder / "requirements.txt").read_text() == PINS
    assert npm.endswith(f"npm ci --ignore-scripts --prefix {tools.npm}")
    assert {file.name for file in tools.npm.iterdir()} == {*PACKAGE_FILES}
    assert tools.is_complete()
    tools.prepare(keep_node=True)
    assert len(called) == 3


def test_a_node_that_is_not_needed_again_goes(tools: NodeTools, called: list[str]) -> None:
    tools.prepare(keep_node=False)
    assert called[-1].endswith(f"pip uninstall --yes --quiet {NODE}")


def test_a_package_that_npm_passed_over_is_missed(tools: NodeTools, called: list[str]) -> None:
    tools = tools._replace(needed="node_modules/*/bin/chain")
    with pytest.raises(SystemExit, match=r"npm did not bring node_modules/\*/bin/chain"):
        tools.prepare(keep_node=True)
    assert not tools.is_complete()


@pytest.mark.parametrize("name", PACKAGE_FILES)
def test_other_packages_are_fetched_anew(tools: NodeTools, called: list[str], name: str) -> None:
    tools.prepare(keep_node=True)
    (tools.folder / "old").touch()
    (tools.packages / name).write_text("changed")
    assert not tools.is_complete()
    tools.prepare(keep_node=True)
    assert tools.is_complete()
    assert not (tools.folder / "old").exists()
    assert not tools._replace(requirements="wheel==4").is_complete()


def test_a_fetch_that_fails_is_told_and_is_not_complete(
    tools: NodeTools,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no room on the disk\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(SystemExit, match=f"a page: a command failed, see above: {python}"):
        tools.prepare(keep_node=True)
    assert "no room on the disk" in capsys.readouterr().err
    assert not tools.is_complete()


def test_one_package_is_taken_out_of_many() -> None:
    assert pinned(PINS, NODE) == f"{NODE}==2 \\\n    --hash=sha256:bb\n"
    assert pinned(PINS, "nodejs") == ""


def test_both_have_a_node_that_is_pinned() -> None:
    for tools in (contract_tools.tools(), web_build.tools()):
        assert pinned(tools.requirements, NODE).count("--hash=") > 1
        assert all((tools.packages / name).is_file() for name in PACKAGE_FILES)
    assert contract_tools.tools().folder != web_build.tools().folder
