"""A workload from tables is played as it is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.base.errors import ConfigError
from shoal_lab.experiments.topics.experiment import TopicsExperiment
from shoal_lab.experiments.topics.workload import COLUMNS, load_workload
from shoal_lab.experiments.topics.workload_network import TopicsOptions, pin_workload
from shoal_lab.runs.run_files import run_name
from shoal_lab.scenarios.scenario import find_scenario, load_scenario

NODES, EVENTS = 12, 40


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Two topics; the second has one reader, who made it."""
    readers = {0: range(NODES), 1: [3]}
    events = [
        {"id": f"c{n:02}", "topic": int(n % 4 == 0), "node": 3 if n % 4 == 0 else n % NODES,
         "size_bytes": 20 + n, "created_utc": 1000 + n}
        for n in reversed(range(EVENTS))
    ]  # fmt: skip
    write(tmp_path, "topics", [{"topic": 1, "author": 3}, {"topic": 0, "author": 3}])
    write(tmp_path, "subscriptions", [{"topic": t, "node": n} for t in readers for n in readers[t]])
    write(tmp_path, "events", events)
    return str(tmp_path)


def write(folder: Path, table: str, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), folder / f"{table}.parquet")


def load(folder: str, nodes: int = NODES, events: int = EVENTS) -> Any:
    return load_workload(
        folder, Random(1), nodes=nodes, events=events, interval_ms=100, injectors=5
    )


def test_tables_say_who_reads_and_who_speaks(folder: str) -> None:
    workload = load(folder)
    assert [len(topic.readers) for topic in workload.topics] == [NODES, 1]
    assert [topic.author for topic in workload.topics] == [3, 3]
    assert Counter(event.topic for event in workload.events) == {0: 30, 1: 10}
    times = [event.at_ms for event in workload.events]
    assert times == sorted(times)
    assert times[-1] < EVENTS * 100
    # Order is kept, but within a round of the injectors.
    for first in range(0, EVENTS, 5):
        sizes = {event.size_bytes for event in workload.events[first : first + 5]}
        assert sizes == set(range(20 + first, 25 + first))
    assert len(load(folder, events=7).events) == 7


def test_what_does_not_fit_is_refused(folder: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"messages = 41: .* has 40 events"):
        load(folder, events=41)
    with pytest.raises(ConfigError, match=r"nodes = 11: .* was made for 12 nodes"):
        load(folder, nodes=11)
    with pytest.raises(ConfigError, match=r"nowhere/topics\.parquet cannot be read"):
        load("nowhere")
    write(tmp_path, "events", [{"id": "x"}])
    with pytest.raises(ConfigError, match=r"events\.parquet"):
        load(folder)


def test_other_tables_are_another_run(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def named(path: str) -> tuple[TopicsOptions, str]:
        settings = [f"options.workload={path}", "options.ordered=false", "options.slow=false"]
        scenario = load_scenario(find_scenario("topics-reddit"), settings)
        return scenario.options, run_name(scenario, 1)

    monkeypatch.chdir(tmp_path.parent)
    options, name = named(tmp_path.name)
    assert options.workload == folder, "executors are in other folders"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for table in COLUMNS:
        (elsewhere / f"{table}.parquet").write_bytes((tmp_path / f"{table}.parquet").read_bytes())
    assert named(str(elsewhere))[1] == name
    write(tmp_path, "topics", [{"topic": 0, "author": 1}, {"topic": 1, "author": 3}])
    assert named(folder)[1] != name
    with pytest.raises(ConfigError, match="has other tables by now"):
        pin_workload(options)
    with pytest.raises(ConfigError, match=r"topics\.parquet cannot be read"):
        named("nowhere")


@pytest.mark.parametrize("system", ["topics", "floodsub"])
def test_a_run_plays_them(folder: str, system: str) -> None:
    settings = [
        f"options.workload={folder}", f"options.system={system}", "options.ordered=false",
        "options.slow=false", "options.kills=0", f"nodes={NODES}", f"messages={EVENTS}",
        "settle_s=30", "drain_s=30", "options.neighbours=11",
    ]  # fmt: skip
    experiment = TopicsExperiment(
        load_scenario(find_scenario("topics-reddit"), settings), 1, (), ""
    )
    experiment.run()
    figures = experiment.figures()
    assert figures.issued == figures.injected == EVENTS
    assert figures.delivered == figures.due == 30 * NODES + 10
    assert [topic.readers for topic in figures.per_topic] == [NODES, 1]
