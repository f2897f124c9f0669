"""A real Chromium for tests, which may ask nobody but this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, sync_playwright

from scripts.chromium import find_chromium

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
WIDE = {"width": 1280, "height": 900}
PATIENCE_MS = 15_000


@contextmanager
def open_chromium(*flags: str) -> Iterator[Browser]:
    """A browser with a profile of its own, gone at the end."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=[*FLAGS, *flags])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_page(browser: Browser, *, refused: int = 0, **settings: Any) -> Iterator[Page]:
    """A page in which nothing may go wrong, and which asks nobody else. `refused` is a status that
    it shall get: the browser says so on its console."""
    context = browser.new_context(**{"viewport": WIDE, **settings})
    context.set_default_timeout(PATIENCE_MS)
    page, said, asked = context.new_page(), [], []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    try:
        yield page
        elsewhere = [url for url in asked if urlsplit(url).hostname != "127.0.0.1"]
        assert not elsewhere
        assert [line for line in said if f"status of {refused}" not in line] == []
        assert bool(said) == bool(refused)
        assert asked
    finally:
        context.close()
