"""A zip of sources gets their bytecode, and is imported from as before."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from scripts.spark_bytecode import add_bytecode

LOOK = "import sys, some.thing; print(some.thing.__cached__ or some.thing.__file__, some.thing.N)"


def test_bytecode_is_added_once_and_is_what_is_imported(tmp_path: Path) -> None:
    archive = tmp_path / "some.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("some/__init__.py", "")
        made.writestr("some/thing.py", "N = 1 if 1 is 1 else 2\n")  # of which compilers warn
        made.writestr("some/data.txt", "kept")
    assert add_bytecode(archive)
    assert not add_bytecode(archive)
    assert list(tmp_path.iterdir()) == [archive], "nothing is left behind"
    with zipfile.ZipFile(archive) as made:
        assert sorted(made.namelist()) == [
            *("some/__init__.py", "some/__init__.pyc", "some/data.txt"),
            *("some/thing.py", "some/thing.pyc"),
        ]
        assert made.read("some/data.txt") == b"kept"
    told = subprocess.run(
        [sys.executable, "-c", LOOK],
        env={**os.environ, "PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == f"{archive / 'some' / 'thing.pyc'} 1\n"
