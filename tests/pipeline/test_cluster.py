"""A standalone cluster: two workers, whose Python has nothing but what was packed.

The lab's sweep and report run there, and the same report here; and over Spark Connect a stream is
read and written, at once and as a query. All in one driver, whose session on the cluster serves all
of it: what takes time is starting JVMs and unpacking what was packed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyspark
import pytest

from shoal.cli.app import main as run_command
from shoal.kernel.records import RUN_FILE
from shoal_lab.runs.places import ThisProcess
from shoal_lab.runs.plan import load_plan
from shoal_lab.runs.sweep import run_plan
from shoal_lab.scenarios.scenario import find_scenario
from shoal_spark import executor_archive as packing
from shoal_spark import session
from shoal_spark.executor_archive import PACKED, Packed, package
from shoal_spark.java import archive_options, find_java
from tests.node.network import free_port
from tests.pipeline.interpreted import INTERPRETED
from tests.pipeline.outbox_thread import far_subscriber
from tests.support.log_server import STREAM, LogServer, signed
from tests.system.processes import started_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
LOOPBACK = "127.0.0.1"
PATIENCE_S = 240.0
MESSAGES = 400
CLIENT = Path(__file__).with_name("connect_client.py")
SETTINGS = ("nodes=[24,48]", "repeats=2", "messages=60")

DRIVER = """
import json, sys
from contextlib import contextmanager
from msgspec.structs import replace
from shoal.cli.app import main
from shoal_spark import session

running = []

@contextmanager
def kept(settings):
    if not running:
        given = {**settings.more, **more}
        running.append(session.start_session(replace(settings, more=given)))
    yield running[0]

session.spark_session = kept
commands, more = json.loads(sys.argv[1])
for words in commands:
    if not words:  # others have work for the session
        print("waiting", flush=True)
        sys.stdin.readline()
        continue
    try:
        main(words)
    except SystemExit as end:
        if end.code:
            raise
running[0].stop()
"""


class Cluster(NamedTuple):
    url: str
    workers: tuple[subprocess.Popen[bytes], ...]


def environment(**more: str) -> dict[str, str]:
    """Nothing of ours on any path, and a Java."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    java = str(find_java(os.environ, Path(sys.prefix)))
    return {**kept, "JAVA_HOME": java, "SPARK_HOME": str(SPARK_HOME), **more}


def quick_java() -> str:
    """A JVM that lives for seconds compiles little, and begins with the classes of the archive."""
    java = find_java(os.environ, Path(sys.prefix))
    return " ".join(["-XX:TieredStopAtLevel=1", *archive_options(java)])


@contextmanager
def daemon(folder: Path, name: str, kind: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon of Spark, stopped at the end by its id."""
    command = [
        str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind.lower()}.{kind}",
        "--host", LOOPBACK, "--webui-port", "0", *words,
    ]  # fmt: skip
    settings = environment(
        SPARK_LOCAL_IP=LOOPBACK,
        # Without settings it says what happens; errors alone would not tell when it is ready. And
        # with a folder that is there, classes would not be taken from the archive.
        SPARK_CONF_DIR=str(folder / "none"),
        SPARK_DAEMON_MEMORY="256m",
        SPARK_DAEMON_JAVA_OPTS=f"{quick_java()} -XX:+UseSerialGC",
    )
    with (
        log_of(folder, name).open("wb") as output,
        subprocess.Popen(command, env=settings, stdout=output, stderr=output) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def log_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.log"


def wait_for(log: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while text not in log.read_text(errors="replace"):
        assert process.poll() is None, log.read_text(errors="replace")
        assert time.monotonic() < end_s, log.read_text(errors="replace")
        time.sleep(0.1)


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Future[Packed]]:
    """What executors get, packed while the cluster starts."""
    monkeypatch.setattr(packing, "LEVEL", 0)  # nobody waits for a network here
    with ThreadPoolExecutor() as pool:
        yield pool.submit(package, tmp_path / "shoal.zip")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A master and two workers with a core each."""
    port = str(free_port())
    url = f"spark://{LOOPBACK}:{port}"
    with ExitStack() as stack:
        master = stack.enter_context(daemon(tmp_path, "master", "Master", "--port", port))
        wait_for(log_of(tmp_path, "master"), "New state: ALIVE", master)
        workers = {}
        for number in (1, 2):
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(work_of(tmp_path, number)))
            name = f"worker{number}-log"
            workers[name] = stack.enter_context(daemon(tmp_path, name, "Worker", *size, url))
        for name, worker in workers.items():
            wait_for(log_of(tmp_path, name), "Starting Spark worker", worker)
        yield Cluster(url, tuple(workers.values()))


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
def driver(
    python: Path, settings: dict[str, str], *commands: list[str]
) -> Iterator[subprocess.Popen[bytes]]:
    """The commands, one after the other, in a process of its own: ours may have a session. Where
    one is empty it waits for a line. The settings are for Spark on the cluster."""
    # Beside the driver sources are planned, by the Python that executors have: here it finds Shoal.
    paths = os.pathsep.join([str(ROOT / "src"), *(p for p in sys.path if "site-packages" in p)])
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, json.dumps([commands, settings])],
        env=environment(PYTHONPATH=paths, PYSPARK_PYTHON=str(python), SPARK_LOCAL_IP=LOOPBACK),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # communicate() knows nothing of what readline() has read ahead
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def test_a_cluster_gives_what_one_machine_gives(
    spark: SparkSession,
    tmp_path: Path,
    packed: Future[Packed],
    cluster: Cluster,
    bare_python: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also when an executor is lost in the middle of a run."""
    archive, runs = packed.result(), tmp_path / "runs"
    assert {"shoal", "coincurve", "numpy", "pyarrow", "scipy"} <= archive.packages.keys()
    there = ["--master", cluster.url, "--environment", archive.file, "--json"]
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    report = ["lab", "report", str(runs), "--out", str(tmp_path / "report.html")]
    port = free_port()
    connect = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": str(port),
        "spark.executor.extraJavaOptions": quick_java(),
        **INTERPRETED,
    }
    with driver(
        bare_python,
        connect,
        ["lab", "run", "streams-smoke", *sets, "--no-check", "--out", str(runs), *there],
        [*report, *there],
        [],
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        for lost in started_by(cluster.workers[0].pid):
            os.kill(lost, signal.SIGKILL)
        lines = [first]
        while lines[-1] != b"waiting\n":
            lines.append(process.stdout.readline())
            assert lines[-1], process.stderr and process.stderr.read().decode()
        read_and_write(tmp_path, f"sc://{LOOPBACK}:{port}")
        rest, told = process.communicate(b"\n", timeout=PATIENCE_S)
    errors = told.decode()
    assert process.returncode == 0, errors
    assert re.search(r"^streams-smoke: \d of 4 runs done", errors, re.M)
    assert re.search(r"^report: .*, about .* left$", errors, re.M)
    assert not rest
    monkeypatch.setattr(session, "spark_session", lambda settings: nullcontext(spark))
    with suppress(SystemExit):
        run_command([*report, "--json"])
    told_here = capsys.readouterr().out.encode().splitlines()
    *swept, summary, elsewhere, here = map(json.loads, [*lines[:-1], *told_here])
    # The executor that was killed may have written a run, and not said so.
    assert (summary["ran"] + summary["skipped"], summary["failed"]) == (4, 0)
    plan = load_plan(find_scenario("streams-smoke"), SETTINGS)
    alone = {run.planned.run: run.result for run in run_plan(plan, ThisProcess(), check=False)}
    assert {run["run"]: run["trace_hash"] for run in swept} == {
        run: result.trace_hash for run, result in alone.items() if result
    }
    commits = {provenance_of(runs / run["run"])["commit"] for run in swept}
    with zipfile.ZipFile(archive.file) as packed_files:
        packed_commit = packed_files.read(f"shoal_spark/{PACKED}").decode()
    assert commits == {packed_commit}, "what was packed knows where it is from"
    assert elsewhere["points"] == here["points"]
    assert [len(point["runs"]) for point in here["points"]] == [2, 2]
    # Both workers had executors, which unpacked what was sent; one had to begin again.
    started = [len(list(work_of(tmp_path, n).glob("app-*/*/stderr"))) for n in (1, 2)]
    assert started == [2, 1]


def read_and_write(folder: Path, url: str) -> None:
    """Source and sink on the cluster, from a client that has neither JVM nor executors."""
    expected = [f'{how} {{"number":{n}}}' for how in ("batch", "live") for n in range(MESSAGES)]
    with LogServer(folder / "log") as log, far_subscriber(folder, expected) as sink:
        log.append(signed(n, partition=n % 2) for n in range(MESSAGES))
        plan = {
            "source": {"servers": log.address, "stream": STREAM, "maxRecordsPerPartition": "100"},
            "sink": sink,
            "checkpoint": str(folder / "checkpoint"),
        }
        (folder / "plan.json").write_text(json.dumps(plan))
        done = subprocess.run(
            [sys.executable, CLIENT, url, folder / "plan.json"],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def provenance_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / RUN_FILE).read_text())["provenance"]
    return found
