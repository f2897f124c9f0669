"""Spark's own Python in .venv, compiled: its workers then start with a third of the work.

Spark gives every Python process that it starts (half a dozen for each query) its own pyspark.zip
before all else, which has sources only: each of them compiles pyspark again. Here the same zip gets
their bytecode as well. Another Python passes over it, and takes the sources.

    python -m scripts.spark_bytecode
"""

from __future__ import annotations

import importlib.util
import os
import py_compile
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path
from py_compile import PycInvalidationMode


def add_bytecode(archive: Path) -> bool:
    """Put bytecode beside the sources of a zip; whether that was still to be done."""
    with zipfile.ZipFile(archive) as sources:
        names = sources.namelist()
        if any(name.endswith(".pyc") for name in names):
            return False
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            made = Path(folder) / "made.zip"
            with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as both:
                for name in names:
                    source = sources.read(name)
                    both.writestr(name, source)
                    if name.endswith(".py"):
                        both.writestr(f"{name}c", _compiled(name, source, Path(folder)))
            # Whole or not at all: somebody may start Spark meanwhile.
            os.replace(made, archive)
    return True


def _compiled(name: str, source: bytes, folder: Path) -> bytes:
    """Bytecode that is never held against its source: they are in one archive."""
    text, code = folder / "source.py", folder / "code.pyc"
    text.write_bytes(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is not ours
        py_compile.compile(
            str(text), str(code), name, doraise=True,
            invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
        )  # fmt: skip
    return code.read_bytes()


def main() -> None:
    """Do it if it has not been done, and say so."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return
    archive = Path(spec.origin).parent / "python" / "lib" / "pyspark.zip"
    try:
        if add_bytecode(archive):
            print("shoal: compiled Spark's Python in .venv, for tests", file=sys.stderr)
    except (OSError, py_compile.PyCompileError, zipfile.BadZipFile) as error:
        print(f"shoal: Spark's Python could not be compiled ({error})", file=sys.stderr)


if __name__ == "__main__":
    main()
