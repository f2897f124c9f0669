"""See to it that .venv holds the pinned requirements and Shoal itself.

    environment.py check KIND    says by its exit code whether it does
    environment.py make KIND     installs what is missing

KIND: runtime, what most commands need; spark, the pipeline on top, with a Java; test, all of it.

A stamp inside .venv says what was installed. It is removed before the first change and written
after the last, so an environment without one was interrupted, and is built from nothing. Only one
process changes .venv at a time; the others wait, and then find the work done.

Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "shoal-stamp.json"
LOCK = ROOT / ".venv.lock"  # beside .venv, because .venv is removed while the lock is held
PYTHON = VENV / "bin" / "python"

# Which pins each kind of use is made of: the last of them repeats the others.
PINS = {
    "runtime": ("runtime",),
    "spark": ("runtime", "spark"),
    "test": ("runtime", "spark", "test"),
}

Stamp = dict[str, str]


class Step(Enum):
    NOTHING = "nothing"
    JAVA = "find or fetch a Java"
    PACKAGE = "install Shoal again: its entry points or its metadata changed"
    ADD = "install what this kind of use needs on top"
    REBUILD = "build from nothing"


def wanted_stamp() -> Stamp:
    """What a complete environment of this tree and this interpreter is stamped with."""

    def digest(name: str) -> str:
        return hashlib.sha256((ROOT / name).read_bytes()).hexdigest()

    return {
        "root": str(ROOT),  # a copied tree must not run the code of the original
        "python": platform.python_version(),
        "package": digest("pyproject.toml"),
        **{pins: digest(f"requirements/{pins}.txt") for pins in PINS},
    }


def read_stamp() -> Stamp:
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def next_step(stamp: Stamp, wanted: Stamp, kind: str) -> Step:
    """The least that makes an environment with this stamp fit for this kind of use."""
    if any(stamp.get(key) != wanted[key] for key in ("root", "python", "runtime")):
        return Step.REBUILD
    if any(pins not in stamp for pins in PINS[kind]):
        # Old pins are not installed over: a package that left the list would stay behind.
        old = any(pins in stamp and stamp[pins] != wanted[pins] for pins in PINS)
        return Step.REBUILD if old else Step.ADD
    if any(stamp[pins] != wanted[pins] for pins in PINS[kind]):
        return Step.REBUILD
    if stamp["package"] != wanted["package"]:
        return Step.PACKAGE
    return Step.JAVA if needs_java(kind) and not has_java(stamp) else Step.NOTHING


def needs_java(kind: str) -> bool:
    return "spark" in PINS[kind]


def has_java(stamp: Stamp) -> bool:
    """Whether the Java that was found is still there; its version was looked at then."""
    return "java" in stamp and os.access(Path(stamp["java"], "bin", "java"), os.X_OK)


def make(kind: str) -> None:
    with only_one() as lock:
        stamp, wanted = read_stamp(), wanted_stamp()
        step = next_step(stamp, wanted, kind)
        if step is Step.NOTHING:
            return
        STAMP.unlink(missing_ok=True)
        if step is Step.REBUILD:
            say(f"setting up .venv with Python {platform.python_version()}, once")
            if VENV.is_symlink():
                VENV.unlink()
            shutil.rmtree(VENV, ignore_errors=True)
            # Not sys.executable: with .venv activated that is the file just removed.
            base_python = getattr(sys, "_base_executable", sys.executable)
            call([base_python, "-m", "venv", str(VENV)], lock)
            stamp = {}
        if step in (Step.REBUILD, Step.ADD):
            requirements = ROOT / "requirements" / f"{kind}.txt"
            pip(lock, "--require-hashes", "--requirement", str(requirements))
        if step is not Step.JAVA:
            # The build backend is among the requirements, so this needs no network.
            pip(lock, "--no-build-isolation", "--no-deps", "--editable", str(ROOT))
        installed = stamp | {key: wanted[key] for key in ("root", "python", "package")}
        installed |= {pins: wanted[pins] for pins in PINS[kind]}
        # The packages are complete, whatever comes of Java: they are not to be built again.
        write_stamp(installed)
        if needs_java(kind) and not has_java(installed):
            write_stamp(installed | {"java": str(find_or_fetch_java())})
        say("ready")


def write_stamp(stamp: Stamp) -> None:
    unfinished = STAMP.with_suffix(".new")
    unfinished.write_text(json.dumps(stamp))
    os.replace(unfinished, STAMP)


def find_or_fetch_java() -> Path:
    # Neither is installed, and neither needs anything that is.
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    from scripts.java_runtime import fetch_java
    from shoal_spark.java import NoJava, find_java

    try:
        return find_java(os.environ, VENV)
    except NoJava as error:
        say(f"{error}; fetching one into .venv")
    return fetch_java(VENV)


@contextmanager
def only_one() -> Iterator[int]:
    """Hold the lock on .venv, waiting for whoever has it; gives its file descriptor."""
    import fcntl  # not on every platform that can run `check`

    with LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is setting up .venv, waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def pip(lock: int, *arguments: str) -> None:
    command = [str(PYTHON), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    call([*command, "--progress-bar", "off", *arguments], lock, progress_line())


def call(command: list[str], lock: int, show: Callable[[str], None] = lambda line: None) -> None:
    """Run a command, show its lines as progress, and all of them if it fails."""
    lines: list[str] = []
    # The child shares the lock: if we are killed, nobody else starts while it still writes.
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=[lock],
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            lines.append(line)
            show(line)
    show("")
    if child.returncode:
        sys.stderr.writelines(lines)
        raise SystemExit(f"shoal: set-up failed, see above: {' '.join(command[1:4])}")


def progress_line() -> Callable[[str], None]:
    """Shows where pip is: on a terminal in one line, elsewhere the last phase only."""
    clear = "\r\033[K" if sys.stderr.isatty() else ""
    collected = 0

    def show(line: str) -> None:
        nonlocal collected
        verb, _, rest = line.strip().partition(" ")
        if verb == "Installing" and "," in rest:
            text, end = f"shoal: installing {rest.count(',') + 1} packages", "\n"
        elif clear and verb == "Collecting":
            collected += 1
            text, end = f"shoal: collecting package {collected}: {rest.split(' ')[0]}", ""
        elif clear and not line:
            text, end = "", ""
        else:
            return
        print(clear + text, end=end, file=sys.stderr, flush=True)

    return show


def say(text: str) -> None:
    print(f"shoal: {text}", file=sys.stderr, flush=True)


def main() -> None:
    action, kind = sys.argv[1:]
    if action == "check":
        sys.exit(next_step(read_stamp(), wanted_stamp(), kind) is not Step.NOTHING)
    try:
        make(kind)
    except KeyboardInterrupt:
        sys.exit("\nshoal: set-up interrupted; the next start begins it again")


if __name__ == "__main__":
    main()
