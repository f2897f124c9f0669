"""Finished runs, as the explorer reads them: the way of a message, and figures side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.base.errors import NotFound, UsageError
from shoal.kernel.records import RUN_FILE
from shoal_lab.views.finished_runs import RunFile, RunFolder, shown_figures
from shoal_lab.views.run_overlay import NOWHERE, RunTables
from tests.support.synthetic_run import MESSAGES, SyntheticRun

NODES = 64


@pytest.fixture(scope="module")
def run() -> SyntheticRun:
    return SyntheticRun(NODES)


@pytest.fixture(scope="module")
def folder(run: SyntheticRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    run.write(folder)
    return folder


def test_the_way_of_a_message_follows_from_links_and_times(run: SyntheticRun, folder: Path) -> None:
    tables = RunTables(RunFolder(folder).path(run.run))
    for message in range(MESSAGES):
        path = tables.path(message)
        arrived, hops = run.arrived_us[message] / 1000, run.hops(message)
        links = dict(zip(map(tuple, run.links.tolist()), run.delays_us / 1000, strict=True))
        assert path.publisher == run.publishers[message]
        assert path.senders[path.publisher] == NOWHERE
        assert path.hops == hops
        for node, sender in enumerate(path.senders):
            assert path.delays_ms[node] == pytest.approx(arrived[node])
            if node != path.publisher:
                # Of several that fit, any is as good.
                took = arrived[sender] + links[sender, node]
                assert took == pytest.approx(arrived[node])
                assert hops[sender] + 1 == hops[node]


def test_the_overlay_of_a_run_has_every_link_once(run: SyntheticRun, folder: Path) -> None:
    overlay = RunTables(RunFolder(folder).path(run.run)).overlay()
    assert len(overlay.nodes) == NODES
    assert len(overlay.links) == len(run.links) // 2
    assert all(a < b for a, b, _ in overlay.links)
    assert overlay.nodes[1].region == "us-east-1"
    assert overlay.nodes[1].place == (38.9, -77.5)
    assert [told.deliveries for told in overlay.messages] == [NODES - 1] * MESSAGES
    assert sum(overlay.delays_ms.counts) == sum(overlay.hops.counts) == MESSAGES * (NODES - 1)


def test_figures_stand_beside_published_ones(folder: Path, run: SyntheticRun) -> None:
    figures = {one.name: one for one in shown_figures(RunFolder(folder).file(run.run))}
    mean = figures["mean delay, ms"]
    assert (mean.ours, mean.verdict) == (290.0, "outside")
    assert mean.published is not None
    assert figures["duplicates per message and node"].verdict == "inside"
    assert figures["connected"].ours == "yes"
    assert figures["connected"].published is None


@pytest.mark.parametrize(
    "other",
    [
        '"policy":"aware"',
        '"policy":"random","liars":0.2',
        '"policy":"random","redundant_feeds":0',
    ],
)
def test_another_setting_has_nothing_published(tmp_path: Path, other: str) -> None:
    run = SyntheticRun(NODES)
    file = tmp_path / run.write(tmp_path) / RUN_FILE
    file.write_text(file.read_text().replace('"policy":"random"', other))
    assert all(one.published is None for one in shown_figures(RunFolder(tmp_path).file(run.run)))


@pytest.mark.parametrize("nodes", [100, 24])
def test_topics_stand_beside_their_source_if_they_had_its_workload(nodes: int) -> None:
    scenario = {
        "protocol": "topics", "experiment": "reddit", "network": {"nodes": nodes},
        "workload": {"messages": 17_611}, "options": {"topics": 23, "ordered": True, "slow": False},
    }  # fmt: skip
    figures = {"coverage_percent": 100.0, "coverage_of_issued_percent": 99.0}
    file = RunFile(1, "topics", 1, scenario, {"figures": figures}, {})
    beside = [one.published for one in shown_figures(file) if one.published is not None]
    assert beside == ([80, 37] if nodes == 100 else [])


def test_what_is_no_run_is_left_out_and_told(folder: Path, tmp_path: Path) -> None:
    assert RunFolder(None).all() == []
    assert RunFolder(tmp_path / "nothing").all() == []
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / RUN_FILE).write_text("{")
    (tmp_path / ".hidden").mkdir()
    assert RunFolder(tmp_path).all() == []
    with pytest.raises(UsageError, match="broken"):
        RunFolder(tmp_path).file("broken")
    with pytest.raises(NotFound, match="lab run"):
        RunFolder(folder).path("another")


@pytest.mark.parametrize("name", ["..", "../x", ".hidden", "a/b", "", "a\0b"])
def test_a_name_never_becomes_a_path(folder: Path, name: str) -> None:
    with pytest.raises(NotFound):
        RunFolder(folder).path(name)


def test_a_message_that_is_not_there_is_told(run: SyntheticRun, folder: Path) -> None:
    with pytest.raises(NotFound, match="choose another"):
        RunTables(RunFolder(folder).path(run.run)).path(MESSAGES)
