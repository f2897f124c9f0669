"""What Spark is started with, and what is said if it cannot be. No JVM but in the last tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from shoal.base.errors import UsageError
from shoal_spark import session
from shoal_spark.java import NoJava, class_archive, find_java, java_version
from shoal_spark.session import SessionSettings, spark_settings, start_session

ROOT = Path(__file__).parents[2]


def fake_java(home: Path, says: str) -> Path:
    """A program that says a version, as Java does, on stderr."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    return home


def test_java_is_looked_for_where_the_user_says_then_on_the_path_then_in_our_own(
    tmp_path: Path,
) -> None:
    said = fake_java(tmp_path / "said", 'openjdk version "21.0.1" 2026-01-01')
    on_path = fake_java(tmp_path / "path", 'openjdk version "17.0.2"')
    prefix = tmp_path / "venv"
    own = fake_java(prefix / "java", 'openjdk version "17.0.9"')
    path = {"PATH": str(on_path / "bin")}
    assert find_java({"JAVA_HOME": str(said), **path}, prefix) == said
    assert find_java(path, prefix) == on_path
    assert find_java({"PATH": ""}, prefix) == own


def test_a_java_of_another_version_is_passed_over(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", 'java version "1.8.0_402"')
    prefix = tmp_path / "venv"
    with pytest.raises(NoJava, match=r"JAVA_HOME has Java 1, PATH has none, our own .* has none"):
        find_java({"JAVA_HOME": str(old), "PATH": ""}, prefix)
    own = fake_java(prefix / "java", 'openjdk version "17.0.9"')
    assert find_java({"JAVA_HOME": str(old), "PATH": ""}, prefix) == own


def test_a_program_that_does_not_start_is_no_java(tmp_path: Path) -> None:
    assert java_version(tmp_path) is None
    assert java_version(fake_java(tmp_path / "mute", "no idea")) is None
    broken = fake_java(tmp_path / "broken", "")
    (broken / "bin" / "java").write_bytes(b"\x7fELF")
    assert java_version(broken) is None


def test_settings_are_ours_and_can_be_overruled() -> None:
    settings = spark_settings(
        SessionSettings(driver_memory="9g", more={"spark.ui.enabled": "true"})
    )
    assert settings["spark.master"] == "local[*]"
    assert settings["spark.driver.memory"] == "9g"
    assert settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.sql.session.timeZone"] == "UTC"
    assert settings["spark.sql.shuffle.partitions"] == "4"
    assert settings["spark.sql.objectHashAggregate.sortBased.fallbackThreshold"] == "100000"
    assert settings["spark.sql.codegen.aggregate.fastHashMap.capacityBit"] == "18"
    assert settings["spark.ui.enabled"] == "true"
    assert "TieredStopAtLevel" not in settings["spark.driver.extraJavaOptions"]


def test_classes_are_taken_from_the_archive_of_this_java_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    java, other = tmp_path / "java", tmp_path / "other"
    for home, build in ((java, "17.0.1"), (other, "17.0.2")):
        home.mkdir()
        (home / "release").write_text(build)
    quick = SessionSettings(quick_start=True)

    def options(settings: SessionSettings, home: Path) -> str:
        return spark_settings(settings, home)["spark.driver.extraJavaOptions"]

    assert "SharedArchiveFile" not in options(quick, java)
    archive = class_archive(java)
    archive.parent.mkdir()
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive}" in options(quick, java)
    assert "SharedArchiveFile" not in options(quick, other)
    assert "SharedArchiveFile" not in options(SessionSettings(), java)


def test_the_executors_of_a_cluster_can_reach_the_driver() -> None:
    settings = spark_settings(SessionSettings(master="spark://somewhere:7077"))
    assert "spark.driver.host" not in settings


def test_without_java_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    with pytest.raises(UsageError, match=r"needs Java 17 or 21.*scripts/prepare spark"):
        start_session()


def test_without_pyspark_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(UsageError, match=r"Spark is not installed.*shoal\[spark\]"):
        start_session()


def test_only_the_session_module_builds_a_session() -> None:
    here = Path(session.__file__)
    for file in (ROOT / "src").rglob("*.py"):
        assert file == here or "SparkSession.builder" not in file.read_text(), file


def test_shoal_and_the_lab_do_not_need_spark() -> None:
    imports = "import shoal, shoal.node, shoal.cli.app, shoal_lab.runs.runner, shoal_spark"
    code = f"import sys; {imports}; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT / "src").returncode == 0


@pytest.mark.spark
def test_a_session_has_its_settings_and_the_next_is_refused(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    assert jvm.java.util.TimeZone.getDefault().getID() == "UTC"
    with pytest.raises(UsageError, match=r"runs already, on local\[2\]"):
        start_session()
