"""The lab on a standalone cluster: two workers, whose Python has nothing but what was packed.

A sweep and a report there, and the same report here, all in one driver, whose session on the
cluster serves both: what takes time is starting JVMs and unpacking what was packed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyspark
import pytest

from shoal.kernel.tables import RUN_FILE
from shoal.lab.catalogue import find_scenario
from shoal.lab.places import ThisProcess
from shoal.lab.plan import load_plan
from shoal.lab.sweep import run_plan
from shoal.pipeline import package as packing
from shoal.pipeline.java import find_java
from shoal.pipeline.package import package
from shoal.pipeline.revision import source_commit

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
LOOPBACK = "127.0.0.1"
PATIENCE_S = 240.0
SETTINGS = ("nodes=[24,48]", "repeats=2", "messages=60")

DRIVER = """
import json, os, sys
from contextlib import contextmanager
from shoal.cli.app import main
from shoal.pipeline import session

running = {}

@contextmanager
def kept(settings):
    if settings.master not in running:
        for other in running.values():
            other.stop()
            os.environ["PYSPARK_PYTHON"] = sys.executable  # the next one is here
        running[settings.master] = session.start_session(settings)
    yield running[settings.master]

session.spark_session = kept
for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit as end:
        if end.code:
            raise
"""


class Cluster(NamedTuple):
    url: str
    workers: tuple[subprocess.Popen[bytes], ...]


def environment(**more: str) -> dict[str, str]:
    """Nothing of ours on any path, and a Java."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    java = str(find_java(os.environ, Path(sys.prefix)))
    return {**kept, "JAVA_HOME": java, "SPARK_HOME": str(SPARK_HOME), **more}


@contextmanager
def daemon(folder: Path, name: str, kind: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon of Spark that is ready for others, stopped at the end by its id."""
    log, ready = folder / f"{name}.log", {"Master": "New state: ALIVE"}
    command = [
        str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind.lower()}.{kind}",
        "--host", LOOPBACK, "--webui-port", "0", *words,
    ]  # fmt: skip
    settings = environment(
        SPARK_LOCAL_IP=LOOPBACK,
        # Without settings it says what happens; errors alone would not tell when it is ready.
        SPARK_CONF_DIR=str(folder),
        SPARK_DAEMON_MEMORY="256m",
        SPARK_DAEMON_JAVA_OPTS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    )
    with (
        log.open("wb") as output,
        subprocess.Popen(command, env=settings, stdout=output, stderr=output) as process,
    ):
        try:
            wait_for(log, ready.get(kind, "Starting Spark worker"), process)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_for(log: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while text not in log.read_text(errors="replace"):
        assert process.poll() is None, log.read_text(errors="replace")
        assert time.monotonic() < end_s, log.read_text(errors="replace")
        time.sleep(0.1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A master and two workers with a core each."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port = str(probe.getsockname()[1])
    url = f"spark://{LOOPBACK}:{port}"
    with ExitStack() as stack:
        stack.enter_context(daemon(tmp_path, "master", "Master", "--port", port))
        workers = []
        for number in (1, 2):
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(work_of(tmp_path, number)))
            log = f"worker{number}-log"
            workers.append(stack.enter_context(daemon(tmp_path, log, "Worker", *size, url)))
        yield Cluster(url, tuple(workers))


def work_of(folder: Path, number: int) -> Path:
    return folder / f"worker{number}"


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """An interpreter with its standard library and nothing else."""
    home = tmp_path / "bare"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    for name in ("shoal", "numpy", "pyspark"):
        tried = subprocess.run([python, "-c", f"import {name}"], cwd=tmp_path, capture_output=True)
        assert tried.returncode == 1, f"{name} is there already, so this would prove nothing"
    return python


@contextmanager
def driver(python: Path, *commands: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """The commands, one after the other, in a process of its own: ours may have a session."""
    settings = environment(
        PYTHONPATH=str(ROOT / "src"), PYSPARK_PYTHON=str(python), SPARK_LOCAL_IP=LOOPBACK
    )
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, json.dumps(commands)],
        env=settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # communicate() knows nothing of what readline() has read ahead
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def executors(process: subprocess.Popen[bytes]) -> list[int]:
    """Of a worker; whichever of its threads started them."""
    found = Path(f"/proc/{process.pid}/task").glob("*/children")
    return [int(child) for file in found for child in file.read_text().split()]


def test_a_cluster_gives_what_one_machine_gives(
    tmp_path: Path, cluster: Cluster, bare_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when an executor is lost in the middle of a run."""
    monkeypatch.setattr(packing, "LEVEL", 0)  # nobody waits for a network here
    archive, runs = tmp_path / "shoal.zip", tmp_path / "runs"
    packed = package(archive)
    assert {"shoal", "coincurve", "numpy", "pyarrow", "scipy"} <= packed.packages.keys()
    there = ["--master", cluster.url, "--environment", str(archive), "--json"]
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    report = ["lab", "report", str(runs), "--out", str(tmp_path / "report.html")]
    with driver(
        bare_python,
        ["lab", "run", "streams-smoke", *sets, "--no-check", "--out", str(runs), *there],
        [*report, *there],
        [*report, "--master", "local[2]", "--json"],
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        for lost in executors(cluster.workers[0]):
            os.kill(lost, signal.SIGKILL)
        rest, told = process.communicate(timeout=PATIENCE_S)
    errors = told.decode()
    assert process.returncode == 0, errors
    assert re.search(r"^streams-smoke: \d of 4 runs done", errors, re.M)
    assert re.search(r"^report: .*, about .* left$", errors, re.M)
    *swept, summary, elsewhere, here = map(json.loads, [first, *rest.splitlines()])
    # The executor that was killed may have written a run, and not said so.
    assert (summary["ran"] + summary["skipped"], summary["failed"]) == (4, 0)
    plan = load_plan(find_scenario("streams-smoke"), SETTINGS)
    alone = {run.planned.run: run.result for run in run_plan(plan, ThisProcess(), check=False)}
    assert {run["run"]: run["trace_hash"] for run in swept} == {
        run: result.trace_hash for run, result in alone.items() if result
    }
    commits = {provenance_of(runs / run["run"])["commit"] for run in swept}
    assert commits == {source_commit()}, "what was packed knows where it is from"
    assert elsewhere["points"] == here["points"]
    assert [len(point["runs"]) for point in here["points"]] == [2, 2]
    # Both workers had executors, which unpacked what was sent; one had to begin again.
    started = [len(list(work_of(tmp_path, n).glob("app-*/*/stderr"))) for n in (1, 2)]
    assert started == [2, 1]


def provenance_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / RUN_FILE).read_text())["provenance"]
    return found
