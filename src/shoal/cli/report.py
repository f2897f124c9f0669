"""`shoal lab report`: a folder of runs as a page."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer

from shoal.base.errors import UsageError
from shoal.cli.interrupts import EXIT_STOPPED, Interrupts, was_interrupted
from shoal.cli.local_paths import local_path
from shoal.cli.progress import ProgressLine
from shoal.cli.spark import Environment, environment_settings
from shoal.pipeline.jobs.stages import WRITING, Stage

# Imported inside the command: Arrow and Spark, which `--help` can do without.

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shoal.pipeline.jobs.collected import Collected
    from shoal.pipeline.report.model import Report

LOOK_S = 0.2  # between two looks at how far it is
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
        str | None,
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
    environment: Environment = None,
) -> None:
    """Put what a folder of runs gave on a page, beside what was published.

    Writes a page that needs nothing else, and the same tables as Markdown. A run with a damaged
    file, or a section that cannot be made, is left out and named, the others are reported, and the
    exit code is 1; it is 2 if there is nothing to report.

    Example: shoal lab report results --out results/report.html
    """
    begin_s = time.monotonic()
    page = _page(folder, out)
    more = environment_settings(environment)
    try:
        with Interrupts() as interrupts, Watch() as watch:
            collected, made = _make(folder, page, master, more, watch, interrupts)
    except (KeyboardInterrupt, Exception) as error:
        if not was_interrupted(error):
            raise
        print("shoal: stopped", file=sys.stderr)
        raise typer.Exit(EXIT_STOPPED) from None
    left_out = [*collected.problems, *made.failures]
    for problem in left_out:
        print(f"shoal: left out: {problem}", file=sys.stderr)
    if json:
        print(_as_json(collected, made, page))
    else:
        for line in made.summary:
            print(line)
        spent_s = time.monotonic() - begin_s
        print(f"{page} and {page.with_suffix(MARKDOWN_SUFFIX)} written in {spent_s:.1f} s")
    if left_out:
        raise typer.Exit(EXIT_INCOMPLETE)


def _page(folder: str, out: str | None) -> Path:
    if out is None:
        # Beside the runs, unless they are where paths do not lead.
        return Path("report.html") if "://" in folder else Path(folder) / "report.html"
    page = local_path("--out", out)
    if "://" not in folder and page.absolute().parent.parent == Path(folder).absolute():
        raise UsageError(
            f"--out {page}: folders in {folder} are runs: write to {folder}/{page.name}, or "
            "somewhere else"
        )
    if page.suffix == MARKDOWN_SUFFIX:
        raise UsageError(f"--out {page} is the page: end it in {HTML_SUFFIX}")
    if page.is_dir():
        raise UsageError(f"--out {page} is a folder: name a file in it")
    return page


def _check_page(page: Path) -> None:
    """Before Spark is started and minutes are spent: UsageError if it could not be written."""
    for file in (page, page.with_suffix(MARKDOWN_SUFFIX)):
        try:
            there = file.exists()
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("ab"):
                pass
            if not there:
                file.unlink()
        except OSError as error:
            raise _not_written(file, error) from error


def _not_written(page: Path, error: OSError) -> UsageError:
    return UsageError(f"{page} cannot be written: {error.strerror}: name another file with --out")


def _make(
    folder: str,
    page: Path,
    master: str,
    more: Mapping[str, str],
    watch: Watch,
    interrupts: Interrupts,
) -> tuple[Collected, Report]:
    try:
        from shoal.pipeline.jobs.collect import collect_folder
    except ImportError as error:
        from shoal.pipeline.session import REMEDY

        raise UsageError(f"a report needs Arrow and Spark ({error}): {REMEDY}") from error
    from shoal.pipeline.report.build import build_report
    from shoal.pipeline.report.html import to_html
    from shoal.pipeline.report.markdown import to_markdown
    from shoal.pipeline.session import SessionSettings, spark_session

    with ExitStack() as stack:

        def session(rows: int) -> SparkSession:
            _check_page(page)
            settings = SessionSettings(
                master=master,
                app="shoal lab report",
                quick_start=rows <= QUICK_ROWS_MAX,
                more=more,
            )
            with interrupts.while_spark_starts():
                started = stack.enter_context(spark_session(settings))
            # What it stumbles over is told in a line, or found in the files and named.
            started.sparkContext.setLogLevel("OFF")
            watch.watch(started)
            return started

        collected = collect_folder(folder, session, watch.tell)
        watch.tell(Stage(WRITING, 1.0, 1.0))
        made = build_report(collected)
        try:
            page.write_text(to_html(made))
            page.with_suffix(MARKDOWN_SUFFIX).write_text(to_markdown(made, page.name))
        except OSError as error:
            raise _not_written(page, error) from error
        watch.tell(Stage("stopping Spark", 1.0, 1.0))
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
    said["failures"] = msgspec.to_builtins(made.failures)
    said["html"], said["markdown"] = str(page), str(page.with_suffix(MARKDOWN_SUFFIX))
    return msgspec.json.encode(said).decode()


class Watch:
    """Shows on stderr how far a report is, from a thread: Spark says nothing by itself."""

    def __init__(self) -> None:
        self._stage = Stage("beginning")
        self._session: SparkSession | None = None
        self._fraction = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, name="shoal-report-progress")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._thread.join()

    def tell(self, stage: Stage) -> None:
        """The next thing is done."""
        self._stage = stage

    def watch(self, session: SparkSession) -> None:
        """Where tasks can be counted."""
        self._session = session

    @property
    def said(self) -> str:
        """In words."""
        return self._stage.said

    @property
    def fraction(self) -> float:
        """By what the stages are expected to take, and Spark's tasks within one."""
        stage = self._stage
        part = _tasks_done(self._session) if self._session and stage.end else 0.0
        # Never backwards: a stage of Spark that begins has done nothing yet.
        self._fraction = max(self._fraction, stage.begin + part * (stage.end - stage.begin))
        return self._fraction

    def _show(self) -> None:
        with ProgressLine("report") as line:
            while not self._over.wait(LOOK_S):
                line.update(self)


def _tasks_done(session: SparkSession) -> float:
    """The part of the tasks that are under way; 0 if nothing is."""
    try:
        tracker = session.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(id) for id in tracker.getActiveStageIds()]
        tasks = sum(int(stage.numTasks) for stage in stages if stage)
        return sum(int(stage.numCompletedTasks) for stage in stages if stage) / max(1, tasks)
    except Exception:
        return 0.0  # the session is just ending
