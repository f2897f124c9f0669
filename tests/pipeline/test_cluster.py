"""A report on a standalone cluster: two workers, whose Python has nothing but what was packed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyspark
import pytest
from pyspark.sql import SparkSession

from shoal.pipeline.java import find_java
from shoal.pipeline.jobs.collect import collect_folder
from shoal.pipeline.package import package
from tests.pipeline.test_collect import write_point

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
LOOPBACK = "127.0.0.1"
PATIENCE_S = 120.0
REPORT_S_MAX = 240.0


def environment(**more: str) -> dict[str, str]:
    """Nothing of ours on any path, and a Java."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    java = str(find_java(os.environ, Path(sys.prefix)))
    return {**kept, "JAVA_HOME": java, "SPARK_HOME": str(SPARK_HOME), **more}


@contextmanager
def started(log: Path, *words: str, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon of Spark, stopped at the end by its id."""
    command = [str(SPARK_HOME / "bin" / "spark-class"), *words]
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, env=environment(SPARK_LOCAL_IP=LOOPBACK, **more), stdout=output, stderr=output
        ) as process,
    ):
        try:
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A master and two workers with a core each; gives the master's address."""
    port = free_port()
    # It says what happens; errors alone would not tell when it is ready.
    conf = tmp_path / "conf"
    conf.mkdir()
    daemon = {"SPARK_DAEMON_MEMORY": "512m", "SPARK_CONF_DIR": str(conf)}
    url = f"spark://{LOOPBACK}:{port}"
    package_of = "org.apache.spark.deploy"
    logs = [tmp_path / f"{name}.log" for name in ("master", "worker1", "worker2")]
    address = ("--host", LOOPBACK, "--webui-port", "0")
    master_words = (f"{package_of}.master.Master", *address, "--port", str(port))

    def worker_words(number: int) -> tuple[str, ...]:
        folder = str(tmp_path / f"worker{number}")
        size = ("--cores", "1", "--memory", "1g", "--work-dir", folder)
        return (f"{package_of}.worker.Worker", *address, *size, url)

    with started(logs[0], *master_words, **daemon) as master:
        wait_for(logs[0], "New state: ALIVE", master)
        with (
            started(logs[1], *worker_words(1), **daemon) as one,
            started(logs[2], *worker_words(2), **daemon) as two,
        ):
            wait_for(logs[1], "Successfully registered", one)
            wait_for(logs[2], "Successfully registered", two)
            yield url


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


def report(folder: Path, page: Path, python: Path, *options: str) -> dict[str, Any]:
    """What the command says, from a process of its own, since a process has but one session."""
    command = [sys.executable, "-m", "shoal.cli", "lab", "report", str(folder), "--json"]
    done = subprocess.run(
        [*command, "--out", str(page), *options],
        env=environment(
            PYTHONPATH=str(ROOT / "src"), PYSPARK_PYTHON=str(python), SPARK_LOCAL_IP=LOOPBACK
        ),
        capture_output=True,
        text=True,
        timeout=REPORT_S_MAX,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_a_cluster_gives_what_one_machine_gives(
    spark: SparkSession, tmp_path: Path, cluster: str, bare_python: Path
) -> None:
    folder = tmp_path / "runs"
    write_point(folder, "small", 32, Random(3))
    write_point(folder, "wide", 64, Random(4))
    archive = tmp_path / "shoal.zip"
    packed = package(archive)
    assert {"shoal", "numpy", "pyarrow", "scipy"} <= packed.packages.keys()
    page = tmp_path / "report.html"
    options = ("--master", cluster, "--environment", str(archive))
    said = report(folder, page, bare_python, *options)
    here = collect_folder(str(folder), lambda _: spark)
    assert said["points"] == json.loads(msgspec.json.encode(here.points))
    # Both workers had an executor, which unpacked what was sent.
    for worker in (tmp_path / "worker1", tmp_path / "worker2"):
        assert list(worker.glob("app-*/*/stderr")), "no executor ran here"
