"""Set-up: what is installed when, and a Java that is fetched. Nothing here goes to a network."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts import environment, java_runtime
from scripts.environment import Stamp, Step, next_step

ROOT = Path(__file__).parents[2]

WANTED: Stamp = {
    "root": "here", "python": "3.11.1", "package": "p", "runtime": "r", "spark": "s", "test": "t",
}  # fmt: skip
RUNTIME = {key: WANTED[key] for key in ("root", "python", "package", "runtime")}


@pytest.fixture
def java(tmp_path: Path) -> str:
    """The home of something that could be a Java."""
    program = tmp_path / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return str(program.parents[1])


def test_what_needs_no_spark_does_not_wait_for_it() -> None:
    assert next_step(RUNTIME, WANTED, "runtime") is Step.NOTHING
    assert next_step(RUNTIME, WANTED, "spark") is Step.ADD
    assert next_step(RUNTIME, WANTED, "test") is Step.ADD


def test_what_has_more_has_less(java: str) -> None:
    for kind in ("runtime", "spark", "test"):
        assert next_step({**WANTED, "java": java}, WANTED, kind) is Step.NOTHING


def test_a_java_that_is_gone_is_looked_for_again(java: str) -> None:
    stamp = {**WANTED, "java": java}
    Path(java, "bin", "java").unlink()
    assert next_step(stamp, WANTED, "spark") is Step.JAVA
    assert next_step(WANTED, WANTED, "test") is Step.JAVA
    assert next_step(WANTED, WANTED, "runtime") is Step.NOTHING


@pytest.mark.parametrize("changed", ["root", "python", "runtime"])
def test_another_ground_is_a_new_building(changed: str, java: str) -> None:
    stamp = {**WANTED, "java": java, changed: "other"}
    assert next_step(stamp, WANTED, "runtime") is Step.REBUILD
    assert next_step({}, WANTED, "runtime") is Step.REBUILD


def test_old_pins_are_not_installed_over(java: str) -> None:
    old = {**WANTED, "java": java, "spark": "old"}
    assert next_step(old, WANTED, "runtime") is Step.NOTHING
    assert next_step(old, WANTED, "spark") is Step.REBUILD
    del old["test"]
    assert next_step(old, WANTED, "test") is Step.REBUILD


def test_changed_metadata_installs_the_package_only(java: str) -> None:
    assert next_step({**RUNTIME, "package": "old"}, WANTED, "runtime") is Step.PACKAGE
    assert next_step({**WANTED, "java": java, "package": "old"}, WANTED, "test") is Step.PACKAGE


def test_every_kind_has_its_pins() -> None:
    stamp = environment.wanted_stamp()
    assert set(environment.PINS) <= stamp.keys()
    names = [
        {line.split("==")[0] for line in pins.read_text().splitlines() if "==" in line}
        for pins in (ROOT / "requirements" / f"{kind}.txt" for kind in environment.PINS)
    ]
    assert names[0] < names[1] < names[2], "each repeats the one before"
    assert "pyspark" in names[1] - names[0]
    assert "duckdb" in names[2] - names[1], "an oracle for tests, and nothing else"


def test_links_lead_into_the_tree_where_it_has_what_they_name(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    home = tree / "usr" / "lib" / "jvm" / "java-17"
    (tree / "etc" / "java").mkdir(parents=True)
    (home / "conf").mkdir(parents=True)
    (tree / "etc" / "java" / "net.properties").write_text("ours")
    (home / "conf" / "net.properties").symlink_to("/etc/java/net.properties")
    (home / "conf" / "cacerts").symlink_to("/etc/ssl/certs/java/cacerts")
    (tree / "usr" / "lib" / "jvm" / "java-1.17").symlink_to("java-17")
    java_runtime.point_links_into(tree)
    assert (home / "conf" / "net.properties").read_text() == "ours"
    # Relative, so that the tree may be moved.
    moved = tree.rename(tmp_path / "elsewhere")
    assert (moved / "usr/lib/jvm/java-1.17/conf/net.properties").read_text() == "ours"
    link = moved / "usr/lib/jvm/java-17/conf/cacerts"
    assert os.readlink(link) == "/etc/ssl/certs/java/cacerts", "another package's"


def test_without_debians_tools_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"without apt-get it cannot be fetched: install it"):
        java_runtime.fetch_java(tmp_path)


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs Debian's tools")
def test_a_package_is_unpacked_and_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an apt-get that knows nothing until it has updated lists of its own."""
    package = tmp_path / "package"
    program = package / "usr/lib/jvm/java-17-openjdk-amd64/bin/java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    program.chmod(0o755)
    (package / "DEBIAN").mkdir()
    (package / "DEBIAN" / "control").write_text(
        "Package: jre\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.org>\n"
        "Description: x\n"
    )
    subprocess.run(["dpkg-deb", "-b", package, tmp_path / "jre.deb"], check=True)
    tools = tmp_path / "tools"
    tools.mkdir()
    own = f"Dir::State::Lists={tmp_path}/venv/java-download/lists"
    (tools / "apt-get").write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        f"*{own}*update) touch lists/updated ;;\n"
        f"*{own}*download*) [ -e lists/updated ] && cp {tmp_path}/jre.deb . ;;\n"
        "*) echo 'E: Unable to locate package' ; exit 100 ;;\n"
        "esac\n"
    )
    (tools / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    venv = tmp_path / "venv"
    venv.mkdir()
    home = java_runtime.fetch_java(venv)
    assert home == venv / "java"
    assert sorted(entry.name for entry in venv.iterdir()) == ["java", "java-debian"]
    (tools / "apt-get").write_text("#!/bin/sh\necho 'E: no network'; exit 100\n")
    with pytest.raises(SystemExit, match=r"fetching it failed \(E: no network\): install it"):
        java_runtime.fetch_java(venv)
    assert not home.exists()


@pytest.mark.skipif(shutil.which("apt-config") is None, reason="needs Debian's tools")
def test_apt_writes_into_our_folder_only(tmp_path: Path) -> None:
    settings = tmp_path / "apt.conf"
    settings.write_text(java_runtime.apt_settings(tmp_path / "cache"))
    command = ["apt-config", f"--config-file={settings}"]
    places = ("Dir::Cache/d", "Dir::Cache::archives/d", "Dir::State::Lists/d")
    variables = [word for number, place in enumerate(places) for word in (f"P{number}", place)]
    own_lists = ["-o", f"Dir::State::Lists={tmp_path}/lists"]
    shown = subprocess.run(
        [*command, *own_lists, "shell", *variables], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(shown) == len(places)
    assert all(line.split("=")[1].startswith(f"'{tmp_path}/") for line in shown), shown
    dump = subprocess.run([*command, "dump"], capture_output=True, text=True, check=True).stdout
    hooks = [line for line in dump.splitlines() if line.startswith("APT::Update::P")]
    assert all(line.endswith(' "";') for line in hooks), hooks
