"""The shape of the package: who imports whom, what must stay pure, and what is left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.layers import Violation, layer_violations
from tests.support.purity import purity_violations
from tests.support.tidy import (
    local_path_violations,
    source_violations,
    text_files,
)

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"

Check = Callable[[str, str], list[Violation]]


@pytest.mark.parametrize("check", [layer_violations, purity_violations, source_violations])
def test_the_package_is_clean(check: Check) -> None:
    files = sorted(SRC.rglob("*.py"))
    assert files
    found = [
        str(violation)
        for file in files
        for violation in check(file.relative_to(SRC).as_posix(), file.read_text())
    ]
    assert not found, "\n".join(found)


def test_no_file_names_a_path_of_one_machine() -> None:
    found = [
        str(violation)
        for file in text_files(ROOT)
        for violation in local_path_violations(
            file.relative_to(ROOT).as_posix(), file.read_text(errors="replace")
        )
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "file", sorted(ROOT.glob("requirements/*.txt")), ids=lambda file: file.name
)
def test_pinned_requirements_name_no_index(file: Path) -> None:
    lines = file.read_text().splitlines()
    assert not [line for line in lines if "://" in line or line.startswith("-")]


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("shoal/base/ids.py", "import shoal.kernel.effects", "above"),
        ("shoal/kernel/host.py", "from shoal.protocols.streams import wire", "above"),
        ("shoal/kernel/host.py", "from shoal import sim", "above"),
        ("shoal/sim/report.py", "import shoal", "above"),
        ("shoal/sim/report.py", "from shoal import Node", "above"),
        ("shoal/protocols/dht/routing_table.py", "from ..topics import tree", "above"),
        ("shoal/protocols/streams/a.py", "from shoal.protocols import topics", "sibling"),
        ("shoal/protocols/streams/__init__.py", "from ..search import bubble", "sibling"),
        ("shoal/runtime/loop.py", "from shoal.sim import heap", "sibling"),
        ("shoal/storage/log.py", "import shoal.registry.port as port", "sibling"),
        ("shoal/gateway/http.py", "import shoal.explorer", "sibling"),
        ("shoal/identity/keys.py", "def f():\n    from shoal.cli import main", "above"),
        ("shoal_spark/read.py", "from shoal.protocols.streams import wire", "files and HTTP"),
        ("shoal_spark/read.py", "from shoal.sim.trace import Row", "files and HTTP"),
        ("shoal_spark/read.py", "import shoal.storage", "files and HTTP"),
        ("shoal_lab/runs/plan.py", "from shoal_city.fleet import motion", "above"),
        ("shoal/sim/host.py", "from shoal_spark import session", "above"),
        ("shoal/base/ids.py", "import importlib\nimportlib.import_module('shoal.cli')", "above"),
        (
            "shoal/identity/keys.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import shoal.sim",
            "above",
        ),
        ("shoal/cli/commands/up.py", "from shoal_lab.commands.lab import lab", "above"),
        ("shoal_spark/sink.py", "from shoal_spark.commands import lake", "files and HTTP"),
        ("shoal/extra/new.py", "", "no layer"),
        ("shoal/protocols/shared.py", "", "no layer"),
        ("shoal/cli/main.py", "import shoal.extra", "no layer"),
    ],
)
def test_an_import_against_the_layers_is_found(path: str, source: str, complaint: str) -> None:
    (violation,) = layer_violations(path, source)
    assert complaint in violation.text
    assert violation.line == len(source.splitlines() or [""])


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("shoal/__init__.py", "from shoal.node import Node\nfrom shoal.base import errors"),
        ("shoal/__init__.py", "from .runtime import loop"),
        ("shoal/base/units.py", "from . import ids\nfrom .errors import UsageError"),
        ("shoal/protocols/topics/tree.py", "from shoal.protocols.dht import lookup"),
        ("shoal_lab/runs/runner.py", "from shoal import sim\nimport shoal_spark, numpy"),
        ("shoal_spark/read.py", "from shoal.base.errors import UsageError"),
        ("shoal_spark/read.py", "from shoal.kernel.records import Record\nimport pyspark"),
        ("shoal/cli/main.py", "import shoal\nfrom shoal import Node, config"),
        ("shoal/__main__.py", "from shoal.cli import main"),
    ],
)
def test_an_import_along_the_layers_is_fine(path: str, source: str) -> None:
    assert layer_violations(path, source) == []


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio",
        "import socket as s",
        "from time import monotonic_ns",
        "def f():\n    import threading",
        "from concurrent.futures import ThreadPoolExecutor",
        "import secrets",
        "__import__('time')",
        "import os\nos.urandom(8)",
        "import os as o\nentropy = o.urandom",
        "from os import urandom",
        "from os import *",
        "import os\nos.environ.get('HOME')",
        "import datetime\ndatetime.datetime.now(datetime.UTC)",
        "from datetime import datetime as d\nd.utcnow()",
        "from datetime import date\ndate.today()",
        "import uuid\nuuid.uuid4()",
        "import random\nrandom.shuffle([])",
        "import random\nsource = random",
        "from random import randint",
        "from random import *",
        "import random\nrandom.Random()",
        "from random import Random\nRandom(None)",
        "from random import Random\nfield(default_factory=Random)",
        "import random\nrandom.SystemRandom(1)",
        "import numpy as np\nnp.random.rand(3)",
        "import numpy as np\nnp.random.default_rng()",
    ],
)
@pytest.mark.parametrize("folder", ["base", "identity", "kernel", "protocols/dht"])
def test_a_clock_a_socket_or_chance_in_pure_code_is_found(folder: str, source: str) -> None:
    (violation,) = purity_violations(f"shoal/{folder}/thing.py", source)
    assert violation.line == len(source.splitlines())
    assert purity_violations("shoal/runtime/thing.py", source) == []


@pytest.mark.parametrize(
    "source",
    [
        "from random import Random\ndef f(rng: Random) -> int:\n    return rng.randrange(3)",
        "import random\nclass A:\n    rng: random.Random\nrandom.Random(7)",
        "from datetime import UTC, datetime\ndatetime.fromtimestamp(0, UTC)",
        "import uuid\nuuid.UUID(int=1)",
        "import os.path\nos.path.join('a', 'b')",
        "import numpy as np\nnp.random.default_rng(7)",
        "def f(time: int, random: int) -> int:\n    return time + random",
        "now = self.datetime.now",
    ],
)
def test_seeds_and_given_times_are_fine(source: str) -> None:
    assert purity_violations("shoal/protocols/streams/thing.py", source) == []


def test_entropy_has_one_door() -> None:
    source = "import os\nos.urandom(8)\nos.getrandom(8)"
    (violation,) = purity_violations("shoal/identity/entropy.py", source)
    assert violation.line == 3


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("shoal/base/ids.py", "x = 1  # " + "TODO" + " later"),
        ("shoal/base/ids.py", "# " + "FIXME"),
        ("shoal/base/utils.py", ""),
        ("shoal/common/ids.py", ""),
        ("shoal/runtime/link_manager.py", ""),
        ("shoal/runtime/links.py", "class LinkManager:"),
    ],
)
def test_an_untidy_file_is_found(path: str, source: str) -> None:
    assert len(source_violations(path, source)) == 1


def test_a_tidy_file_is_fine() -> None:
    assert source_violations("shoal/protocols/dht/keys.py", "def common_prefix_bits(): ...") == []


def test_a_path_of_one_machine_is_found() -> None:
    assert local_path_violations("docs/a.md", "see /" + "home/me/notes")
    assert local_path_violations("a.py", 'open("/' + 'Users/me/x")')
    assert not local_path_violations("docs/a.md", "https://example.org/home/page and ./work/x")
