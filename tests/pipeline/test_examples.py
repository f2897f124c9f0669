"""The programs in examples/ run as they are; only Spark is one that runs already."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.util import module_from_spec, spec_from_file_location
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shoal.base.ids import show_node_id
from shoal.identity.message_body import BINARY
from shoal_city.demo.message_source import fleet_messages, fleet_rules
from tests.support.log_server import ALICE, START_MS, STREAM, LogServer, signed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[2] / "examples"
MESSAGES, RATE, SIZE = 1_000, 100.0, 308
"""Ten minutes of a small fleet."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LogServer]:
    """A storage node that has the demo's fleet."""
    with LogServer(tmp_path / "store") as log:
        said = islice(fleet_messages(RATE, SIZE), MESSAGES)
        messages = [
            signed(number, content=message.content, content_type=BINARY)  # type: ignore[arg-type]
            for number, message in enumerate(said)
        ]
        log.append(messages, (START_MS + MESSAGES) * 1_000_000)
        yield log


def run_example(
    name: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> None:
    spec = spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "spark_session", lambda settings: nullcontext(spark))
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    module.main()


def test_the_examples_run(
    spark: SparkSession,
    server: LogServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    where = ("--servers", server.address, "--stream", STREAM)
    run_example("read_history", spark, monkeypatch, *where)
    (row,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (row["publisher"], row["messages"]) == (show_node_id(ALICE.address), MESSAGES)
    assert row["bad"] == 0
    checkpoints = str(tmp_path / "checkpoints")
    run_example("vehicles", spark, monkeypatch, *where, "--once", "--checkpoints", checkpoints)
    alerts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"begins"} <= {alert["phase"] for alert in alerts}
    assert {alert["kind"] for alert in alerts} <= {"stuck", "bunch"}


def test_the_example_has_the_rules_of_the_demo() -> None:
    rules = fleet_rules()
    text = (EXAMPLES / "vehicles.py").read_text()
    assert f"lateness_s={rules.lateness_s}, skew_s={rules.skew_s})" in text
