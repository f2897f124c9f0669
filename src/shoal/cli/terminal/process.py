"""How many files a process may have open: each link takes one."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

Config = Annotated[Path, typer.Option(metavar="FILE", help="The network file.")]

DEFAULT_CONFIG = Path("shoal.toml")

LIBRARY_LOGS = ("asyncio", "aiohttp.internal", "aiohttp.web", "aiohttp.websocket")
"""Loggers that say what connections of others did."""

API_KEY = "SHOAL_API_KEY"


def allow_all_files() -> None:
    """As many as the system allows at all. It gives fewer at first, 1,024 mostly, for the sake of
    programs that cannot count further."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems allow less than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def log_to_stderr() -> None:
    """Lines of those that run for long: when, how bad, from where, and what. What others say is in
    some of them: no line is broken by it."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("shoal").setLevel(logging.INFO)
    # What strangers do wrong at the door is counted in metrics, and changes nothing.
    logging.getLogger("shoal.runtime").setLevel(logging.WARNING)


class LogLines(logging.Formatter):
    """Plain text: 2026-01-31T12:00:00.123Z WARNING shoal.node: what happened."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        text = "".join(
            char if char.isprintable() else ascii(char)[1:-1] for char in record.getMessage()
        )
        line = f"{when.replace('+00:00', 'Z')} {record.levelname} {record.name}: {text}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def run_until_stopped(main: Coroutine[Any, Any, None]) -> None:
    """Run to the end, or until SIGINT or SIGTERM, which end it in good order. That takes seconds,
    and further ones change nothing: what is being flushed then would be lost."""
    import signal

    from shoal.base.log_line_limit import limit_library_logs

    limit_library_logs(*LIBRARY_LOGS)

    async def stoppable() -> None:
        task = asyncio.ensure_future(main)
        loop = asyncio.get_running_loop()

        def stop() -> None:
            if not task.cancelling():
                task.cancel()

        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, stop)
        with suppress(asyncio.CancelledError):
            await task

    try:
        import uvloop
    except ImportError:
        asyncio.run(stoppable())
    else:
        uvloop.run(stoppable())
