"""The figures of the house, on a tree that is small enough to count by hand."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.house import FOLDER_FILES_MAX, House, Lines, SingleImporter, house, lines_of

PROJECT = """
[project]
scripts.city = "city.app:main"
entry-points.plugins.tram = "city.plugin:Tram"
"""
TREE = {
    "city/__init__.py": '"""The city."""\n\nfrom .streets import Street\n',
    "city/app.py": "from city import Street, maps\nimport city.loads\n",
    "city/plugin.py": "from city.maps import Map, Street\n\n\nclass Lamp:\n    pass\n",
    "city/streets.py": "class Street:\n    class Lamp:\n        pass\n",
    "city/maps.py": "from city.streets import Street\n\n\nclass Map:\n    pass\n",
    "city/loads.py": '"""city.unused"""\n\nTABLE = {"match": "city.kind:MATCH"}\n',
    "city/kind.py": "def match():\n    import city.lamps\n",
    "city/lamps.py": "class Lamp:\n    pass\n" + "x = 1\n" * 100,
    "city/unused.py": "import city.unused\n",
}


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "pyproject.toml").write_text(PROJECT)
    return folder / "src"


@pytest.fixture
def counted(tmp_path: Path) -> House:
    return house(write(tmp_path, TREE))


def test_files_are_counted_without_packages(counted: House) -> None:
    assert counted.source_files == 8
    assert counted.median_lines == 3


def test_a_reexported_name_is_imported_from_where_it_is_defined(counted: House) -> None:
    # app has Street by city, plugin has it by city.maps: city.streets has three importers.
    assert counted.single_importer == [
        SingleImporter("city.lamps", 102, "city.kind"),
        SingleImporter("city.loads", 3, "city.app"),
    ]
    assert [one.module for one in counted.short_single_importer] == ["city.loads"]


def test_what_is_loaded_by_name_is_apart(counted: House) -> None:
    assert counted.loaded_by_name == {"city.app": 0, "city.kind": 0, "city.plugin": 0}
    assert counted.without_importer == ["city.unused"], "a docstring loads nothing, nor itself"


def test_classes_of_one_name_are_found_within_others_too(counted: House) -> None:
    assert counted.repeated_classes == {"Lamp": ["city.lamps", "city.plugin", "city.streets"]}


def test_a_folder_is_large_by_its_own_files(tmp_path: Path) -> None:
    rooms = {f"city/rooms/r{number}.py": "" for number in range(FOLDER_FILES_MAX)}
    more = {"city/rooms/__init__.py": "", "city/rooms/inner/a.py": ""}
    assert house(write(tmp_path, rooms | more)).large_folders == {}
    one_more = rooms | more | {"city/rooms/last.py": ""}
    assert house(write(tmp_path, one_more)).large_folders == {"city/rooms": FOLDER_FILES_MAX + 1}


SOURCE = '''\
"""A module.

With two lines."""

from a import (
    b,
)

LIMIT = 3  # its reason
"""What it is."""
# A comment.
TEXT = """one

two"""


@decorated
def short(one: int) -> int: return one


class Some:
    """A class."""

    def long(
        self,
        call=lambda x: {1: x},
    ) -> None:
        """Contract."""
        import c
        b(c)
'''


def test_lines_are_told_apart(tmp_path: Path) -> None:
    found = lines_of(SOURCE, list(ast.walk(ast.parse(SOURCE))))
    # LIMIT, TEXT (3), @decorated, def short, class, def long (4), b(c)
    assert found == Lines(
        all=30, code=12, signatures=5, imports=4, docstrings=6, blank_or_comment=8
    )
    counted = house(write(tmp_path, {"city/some.py": SOURCE}))
    assert counted.lines == found
    assert (counted.functions, counted.short_functions) == (2, 1)


def test_the_command_prints_a_table_offenders_and_json(tmp_path: Path) -> None:
    src = write(tmp_path, TREE)

    def printed(*words: str) -> str:
        command = [sys.executable, "-m", "scripts.house", str(src), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert "source files" in printed()
    assert "city.loads (3 lines) <- city.app" in printed("--list")
    assert "city.loads (3 lines)" not in printed()
    found = json.loads(printed("--json"))
    assert found["figures"]["modules with a single importer"] == 2
    assert found["repeated_classes"]["Lamp"] == ["city.lamps", "city.plugin", "city.streets"]
