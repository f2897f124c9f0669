"""A Java for Spark, inside .venv, on a machine that has none: Debian's package, unpacked there.

Nothing is installed and nothing outside .venv is written, so this needs no root. It needs a
Debian or one of its kin; elsewhere it says what to install.

Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from shoal_spark.java import VERSIONS, java_version, own_java

WANTED = f"Spark needs Java {' or '.join(map(str, VERSIONS))}"
REMEDY = (
    "install it (Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install "
    "openjdk@17) or set JAVA_HOME to where it is, and start again"
)
DOWNLOAD_S_MAX = 600


def fetch_java(venv: Path) -> Path:
    """Unpack a headless Java under the environment and give its home; SystemExit says why not."""
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise SystemExit(f"shoal: {WANTED}, and without {tool} it cannot be fetched: {REMEDY}")
    home = own_java(venv)
    home.unlink(missing_ok=True)
    tree = venv / "java-debian"
    shutil.rmtree(tree, ignore_errors=True)
    work = venv / "java-download"
    try:
        subprocess.run(["dpkg", "-x", download(work), tree], check=True)
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"shoal: {WANTED}; unpacking it failed ({error}): {REMEDY}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    point_links_into(tree)
    # Last, and by its link only is it found: an unpacking that was interrupted is no Java.
    unpacked = next(tree.glob("usr/lib/jvm/java-*-openjdk-*/bin/java"))
    home.symlink_to(unpacked.parents[1].relative_to(venv))
    if java_version(home) not in VERSIONS:
        raise SystemExit(f"shoal: {WANTED}; the one fetched into {tree} does not start: {REMEDY}")
    return home


def download(work: Path) -> Path:
    """Debian's package of the first version that there is, in a new folder."""
    work = work.absolute()
    shutil.rmtree(work, ignore_errors=True)
    apt, own_lists = apt_commands(work)
    downloads = [["download", f"openjdk-{version}-jre-headless"] for version in VERSIONS]
    said = ""
    for command in (
        *([*apt, *words] for words in downloads),
        # The machine's package lists are missing or out of date: fetch them, for us alone.
        [*own_lists, "update"],
        *([*own_lists, *words] for words in downloads),
    ):
        try:
            done = subprocess.run(
                command,
                cwd=work,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=DOWNLOAD_S_MAX,
            )
        except subprocess.TimeoutExpired:
            raise SystemExit(
                f"shoal: {WANTED}; {' '.join(command)} took too long: {REMEDY}"
            ) from None
        said = done.stdout.strip() or said
        packages = sorted(work.glob("*.deb"))
        if done.returncode == 0 and packages:
            return packages[0]
    reason = said.splitlines()[-1] if said else "apt-get knows no such package"
    raise SystemExit(f"shoal: {WANTED}; fetching it failed ({reason}): {REMEDY}")


def apt_commands(work: Path) -> tuple[list[str], list[str]]:
    """apt-get with files of its own in a folder: with the machine's package lists, and with its own
    lists, which have to be fetched."""
    lists, cache = work / "lists", work / "cache"
    (lists / "partial").mkdir(parents=True)
    (cache / "archives" / "partial").mkdir(parents=True)
    settings = work / "apt.conf"
    settings.write_text(apt_settings(cache))
    apt = ["apt-get", f"--config-file={settings}"]
    own_lists = [*apt, "-o", f"Dir::State::Lists={lists}"]
    return apt, own_lists


def apt_settings(cache: Path) -> str:
    """What keeps apt-get inside our folder, even if root runs it."""
    return (
        # Absolute: apt takes what is not for a place under its own folders.
        f'Dir::Cache "{cache}";\n'
        # Our folder may be closed to the user that apt would become.
        'APT::Sandbox::User "root";\n'
        # What the machine does after its own updates, such as emptying its caches, is not for ours.
        "#clear APT::Update::Pre-Invoke;\n"
        "#clear APT::Update::Post-Invoke;\n"
        "#clear APT::Update::Post-Invoke-Success;\n"
    )


def point_links_into(tree: Path) -> None:
    """Make links to absolute places that the tree has, such as Debian's into /etc, lead there."""
    for folder, folders, files in os.walk(tree):
        for name in (*folders, *files):
            link = Path(folder, name)
            if link.is_symlink() and os.path.isabs(target := os.readlink(link)):
                inside = tree / target.lstrip("/")
                if os.path.lexists(inside):
                    link.unlink()
                    link.symlink_to(os.path.relpath(inside, folder))
