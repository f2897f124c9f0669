"""Settings for all tests: Hypothesis profiles, replayable seeds, seconds per part."""

from __future__ import annotations

import gc
import os
import shlex
import sys
import zlib
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from shoal.base import log_line_limit
from tests.support.parts import PartTimes

# Tests start hundreds of interpreters. Where the environment wants no bytecode, each would compile
# all of Shoal again, which is more than half of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# As src/shoal_lab/testbed/process_memory.py has it for runs: events leave next to no cycles behind,
# yet the collector keeps looking at all nodes of a simulation.
gc.set_threshold(100_000, 20, 50)

# Random examples, but every failure prints the line that brings it back. No deadline: how long an
# example takes says more about the machine than about the code. Half of what is usual, since
# thousands of tests share three minutes; HYPOTHESIS_PROFILE=deep looks twenty times as long.
settings.register_profile("dev", deadline=None, derandomize=False, print_blob=True, max_examples=50)
settings.register_profile("deep", settings.get_profile("dev"), max_examples=1000)
# CI judges a commit, so the same commit gets the same examples: new ones are for those who can look
# at what they find. Nothing stays on its machine, so there is no database, and it may be slow.
settings.register_profile(
    "ci",
    settings.get_profile("dev"),
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="give this seed to every test that takes one")


def pytest_configure(config: pytest.Config) -> None:
    processes = config.getoption("numprocesses", None) or 1
    config.pluginmanager.register(PartTimes(processes))


@pytest.fixture(autouse=True)
def nothing_was_logged_before() -> None:
    """What one test had logged does not count against the next."""
    for limit in list(log_line_limit._limits):
        limit._kinds.clear()


@pytest.fixture(scope="module", autouse=True)
def the_past_is_no_garbage() -> None:
    """Hundreds of tests collect garbage, to see that nothing is left of them. What was imported and
    what earlier files have left is kept out of that: to look at it took longer than most of these
    tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The test's own number, the same in every run, unless --seed gives another."""
    return seed_of(request.node)


def seed_of(item: pytest.Item) -> int:
    given = item.config.getoption("--seed")
    return zlib.crc32(item.nodeid.encode()) if given is None else int(given)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and "seed" in getattr(item, "fixturenames", ()):
        line = f"replay: ./test {shlex.quote(item.nodeid)} --seed {seed_of(item)}"
        report.sections.insert(0, ("seed", line))
    return report
