"""`shoal lab`: run experiments and see what they give."""

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
from shoal.cli.terminal.progress import ProgressLine
from shoal_spark.commands import (
    EXIT_STOPPED,
    Environment,
    Interrupts,
    environment_settings,
    was_interrupted,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shoal_lab.report.analysis.collect import Stage
    from shoal_lab.report.analysis.report_data import Collected
    from shoal_lab.report.blocks import Report

# Imported inside the commands: the simulator and its numerics, which `--help` can do without.

lab = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Run experiments, most of them under virtual time.\n\nExample: shoal lab list",
)


@lab.command()
def run(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A scenario's name, or the path of a .toml file.")
    ],
    seed: Annotated[
        int | None, typer.Option(min=0, help="Another seed gives another run.", show_default=False)
    ] = None,
    json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object a run; of a sweep, a summary at the end."),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override a field of the scenario, as a TOML value, or as a list of them to sweep "
            "over; may be given often.",
        ),
    ] = None,
    wire: Annotated[
        bool, typer.Option("--wire", help="Pass every message through its codec.")
    ] = False,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help="simulator: under virtual time. sockets: real nodes and connections on this "
            "machine, in real time, with the same delays. By default what the scenario says.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Write each run's tables, as Parquet, into a folder of its own in DIR.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Runs at once; as many as there are processors.", show_default=False
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Run also what is in DIR already, and replace it.")
    ] = False,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Run on the executors of this Spark master, spark://HOST:PORT, which must see DIR "
            "under the same path.",
            show_default=False,
        ),
    ] = None,
    environment: Environment = None,
    check: Annotated[
        bool | None,
        typer.Option(
            "--check/--no-check",
            help="Check safety at every step and liveness at the end, or neither. By default "
            "liveness always, safety up to 200 nodes.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a scenario and show what it gave.

    The same scenario and seed give the same simulation, event by event: compare the trace_hash.
    Over sockets runs are alike, not equal. If a check fails, the exit code is 1 and the last line
    is the command that shows it again.

    A list sweeps a field, and `repeats` takes further seeds: every run is one line. Runs that
    are in DIR are not run again, so that a sweep that was stopped goes on where it was; but for
    those that were not checked, if --check asks for it.

    Example: shoal lab run streams-smoke --set nodes=[32,256] --set repeats=3 --out results

    On a cluster: shoal lab run streams-propagation --out /shared/results
    --master spark://HOST:7077 --environment shoal.zip
    """
    from shoal_lab.commands.run_display import executors, processes, run_one, sweep
    from shoal_lab.runs.plan import load_plan
    from shoal_lab.scenarios.scenario import find_scenario

    folder = None if out is None else local_path("--out", out)
    if environment is not None and master is None:
        raise UsageError(f"--environment {environment} is for executors: name their --master")
    twice = [one for one in settings or () if one.partition("=")[0].strip() == "seed"]
    if twice and seed is not None:
        raise UsageError(f"--seed {seed} and --set {twice[-1]}: leave one of them out")
    overrides = [*(settings or ()), *(["network.wire=true"] if wire else ())]
    overrides += [] if on is None else [f"on={on}"]
    # By the name that was given: a file need not lie among those that have a name.
    plan = load_plan(find_scenario(name), overrides, seed=seed, check=check, called=name)
    in_real_time = any(run.in_real_time for run in plan.runs)
    if master is not None:
        if jobs is not None:
            raise UsageError(f"--jobs {jobs} is for this machine: executors have as many as cores")
        if in_real_time:
            raise UsageError(
                f"--master is for simulations: {plan.name} has runs in real time, which need this "
                "machine: leave --master out"
            )
        place = executors(master, environment)
        sweep(plan, place, folder=folder, again=again, check=check, json=json)
    elif len(plan.runs) > 1:
        # Whatever else runs makes real deliveries late.
        place = processes(1 if jobs is None and in_real_time else jobs)
        sweep(plan, place, folder=folder, again=again, check=check, json=json)
    else:
        run_one(plan, folder=folder, again=again, check=check, json=json)


@lab.command(name="list")
def list_() -> None:
    """List the scenarios that come with Shoal.

    Example: shoal lab list
    """
    from shoal_lab.commands.run_display import show_scenarios
    from shoal_lab.runs.plan import load_plan
    from shoal_lab.scenarios.scenario import list_scenarios

    show_scenarios([load_plan(path) for path in list_scenarios()])


# `shoal lab report`: a folder of runs as a page.

# Imported inside the command: Arrow and Spark, which `--help` can do without.

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
    from shoal_lab.report.analysis.collect import WRITING, Stage

    try:
        from shoal_lab.report.analysis.collect import collect_folder
    except ImportError as error:
        from shoal_spark.session import REMEDY

        raise UsageError(f"a report needs Arrow and Spark ({error}): {REMEDY}") from error
    from shoal_lab.report.build import build_report
    from shoal_lab.report.pages import to_html, to_markdown
    from shoal_spark.session import SessionSettings, spark_session

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
        from shoal_lab.report.analysis.collect import Stage

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


# Paths of this machine, where somebody may name a place that is none.


FILE_SCHEME = "file://"


def local_path(option: str, text: str) -> Path:
    """The path that an option names; UsageError for a URI, which would be a folder called `hdfs:`
    in the current one."""
    if "://" in text:
        remedy = "name a folder or file of this machine, and copy what is written from there"
        if text.startswith(FILE_SCHEME):
            remedy = f"write {text.removeprefix(FILE_SCHEME) or 'a path'}"
        raise UsageError(f"{option} {text} is a URI, and nothing is written to those: {remedy}")
    return Path(text)
