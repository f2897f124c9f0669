"""The archive of Spark's classes, as far as it needs no JVM: ./test itself makes one."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import spark_classes


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "spark.jsa"
    monkeypatch.setattr(spark_classes, "find_java", lambda environment, prefix: tmp_path)
    monkeypatch.setattr(spark_classes, "class_archive", lambda java: place)
    return place


def test_none_is_made_where_there_is_one(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    monkeypatch.setattr(spark_classes, "make", lambda archive, java: made.append(archive))
    spark_classes.main()
    assert made == [archive]
    archive.touch()
    spark_classes.main()
    assert made == [archive]


@pytest.mark.usefixtures("archive")
def test_a_failure_is_told_and_no_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(archive: Path, java: Path) -> None:
        raise OSError("no room")

    monkeypatch.setattr(spark_classes, "make", fail)
    spark_classes.main()
    assert "could not be kept (no room)" in capsys.readouterr().err


def test_only_our_own_java_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "$@" > "$0.said"\n')
    program.chmod(0o755)
    with pytest.raises(OSError, match=r"`.*/java -Xshare:dump` makes it"):
        spark_classes.keep_own_classes(tmp_path / "java")
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    spark_classes.keep_own_classes(tmp_path / "java")
    assert (program.parent / "java.said").read_text() == "-Xshare:dump\n"
