"""`shoal lab report`: a folder of runs as a page."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.base.errors import UsageError

# Imported inside the command: Arrow and Spark, which `--help` can do without.

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shoal.pipeline.jobs.collected import Collected
    from shoal.pipeline.report.model import Report

QUICK_S = 2.0  # whoever waits this long does not wonder yet
REPEAT_S = 10.0
QUICK_ROWS_MAX = 10_000_000
"""Up to here the JVM spends its time on compiling: less of that makes up for slower loops."""
EXIT_INCOMPLETE = 1
HTML_SUFFIX, MARKDOWN_SUFFIX = ".html", ".md"


def report(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="DIR", help="A folder that `shoal lab run --out DIR` wrote, or its URI."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The page; the Markdown goes beside it, as .md. [default: DIR/report.html]",
            show_default=False,
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="All figures as one JSON object on stdout.")
    ] = False,
    master: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Where Spark runs: local[*], or spark://HOST:PORT, which must see DIR too.",
        ),
    ] = "local[*]",
    environment: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What `shoal pipeline package` wrote, for executors without Shoal.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Put what a folder of runs gave on a page, beside what was published.

    Writes a page that needs nothing else, and the same tables as Markdown. A run with a damaged
    file is left out and named, the others are reported, and the exit code is 1; it is 2 if there
    is nothing to report.

    Example: shoal lab report results --out results/report.html
    """
    begin_s = time.monotonic()
    page = _page(folder, out)
    if environment is not None and not environment.is_file():
        raise UsageError(f"no file {environment}: `shoal pipeline package {environment}` makes it")
    with _stages() as tell:
        collected, made = _make(folder, page, master, environment, tell)
    for problem in collected.problems:
        print(f"shoal: left out: {problem}", file=sys.stderr)
    if json:
        print(_as_json(collected, made, page))
    else:
        for line in made.summary:
            print(line)
        spent_s = time.monotonic() - begin_s
        print(f"{page} and {page.with_suffix(MARKDOWN_SUFFIX)} written in {spent_s:.1f} s")
    if collected.problems:
        raise typer.Exit(EXIT_INCOMPLETE)


def _page(folder: str, out: Path | None) -> Path:
    if out is None:
        # Beside the runs, unless they are where paths do not lead.
        out = Path("report.html") if "://" in folder else Path(folder) / "report.html"
    if out.suffix == MARKDOWN_SUFFIX:
        raise UsageError(f"--out {out} is the page: end it in {HTML_SUFFIX}")
    if out.is_dir():
        raise UsageError(f"--out {out} is a folder: name a file in it")
    return out


def _make(
    folder: str, page: Path, master: str, environment: Path | None, tell: Callable[[str], None]
) -> tuple[Collected, Report]:
    try:
        from shoal.pipeline.jobs.collect import collect_folder
    except ImportError as error:
        from shoal.pipeline.session import REMEDY

        raise UsageError(f"a report needs Arrow and Spark ({error}): {REMEDY}") from error
    from shoal.pipeline.package import archive_settings
    from shoal.pipeline.report.build import build_report
    from shoal.pipeline.report.html import to_html
    from shoal.pipeline.report.markdown import to_markdown
    from shoal.pipeline.session import SessionSettings, spark_session

    with ExitStack() as stack:

        def session(rows: int) -> SparkSession:
            settings = SessionSettings(
                master=master,
                app="shoal lab report",
                quick_start=rows <= QUICK_ROWS_MAX,
                more=archive_settings(str(environment)) if environment else {},
            )
            return stack.enter_context(spark_session(settings))

        collected = collect_folder(folder, session, tell)
        tell("writing the page")
        made = build_report(collected)
        try:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(to_html(made))
            page.with_suffix(MARKDOWN_SUFFIX).write_text(to_markdown(made, page.name))
        except OSError as error:
            raise UsageError(f"--out {page} cannot be written: {error}") from error
        tell("stopping Spark")
    return collected, made


def _as_json(collected: Collected, made: Report, page: Path) -> str:
    import msgspec

    said = msgspec.to_builtins(collected)
    said["comparisons"] = [
        {
            **msgspec.to_builtins(told),
            "difference": told.difference,
            "inside": told.inside,
            "reproduced": told.reproduced,
        }
        for told in made.comparisons
    ]
    said["html"], said["markdown"] = str(page), str(page.with_suffix(MARKDOWN_SUFFIX))
    return msgspec.json.encode(said).decode()


@contextmanager
def _stages() -> Iterator[Callable[[str], None]]:
    """Says on stderr what is being done, from the second second on, and again while it lasts."""
    begin_s, over = time.monotonic(), threading.Event()
    current = ["beginning"]

    def show() -> None:
        said, due_s = "", QUICK_S
        while not over.wait(0.2):
            spent_s = time.monotonic() - begin_s
            if spent_s < QUICK_S or (current[0] == said and spent_s < due_s):
                continue
            said, due_s = current[0], spent_s + REPEAT_S
            print(f"report: {said} ({spent_s:.0f} s)", file=sys.stderr, flush=True)

    def tell(stage: str) -> None:
        current[0] = stage

    thread = threading.Thread(target=show, name="shoal-report-progress", daemon=True)
    thread.start()
    try:
        yield tell
    finally:
        over.set()
        thread.join()
