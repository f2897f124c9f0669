"""The tutorial's dashboard: a page of another origin that subscribes over WebSocket, in Chromium;
its sensor and its network are processes of their own."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import expect

from shoal.cli.commands.up_folder import UpFolder
from tests.browser.chromium import PATIENCE_MS, open_chromium, open_page
from tests.cli.test_app import ends
from tests.system.processes import Running

pytestmark = pytest.mark.browser

EXAMPLE = Path(__file__).parents[2] / "examples" / "dashboard"

expect.set_options(timeout=PATIENCE_MS)


class Quiet(SimpleHTTPRequestHandler):
    """As `python -m http.server`, which tells of every request."""

    def log_message(self, format: str, *values: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The origin of a folder's pages."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, name="pages")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_page_subscribes_over_websocket(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = UpFolder(tmp_path)
    asyncio.run(folder.open())
    folder.close()
    with served(EXAMPLE) as origin:
        gateway = f'[gateway]\norigins = ["{origin}"]\nkeys = "gateway.keys"\n'
        folder.file.write_text(folder.file.read_text().replace("[gateway]\n", gateway))
        scope = ("--scope", "read", "--stream", "*/sensors/*")
        assert ends("gateway", "key", "new", "dashboard", *scope, "--config", str(folder.file)) == 0
        key = capsys.readouterr().out.strip()
        sensor_command = [sys.executable, str(EXAMPLE / "sensor.py")]
        with (
            Running("up", "--nodes", "0", folder=tmp_path) as up,
            open_chromium() as browser,
        ):
            up.wait_for(lambda: up.out and up.out[-1].startswith("Ctrl-C ends it"))
            address = re.findall(r"gateway +(http\S+)", "\n".join(up.out))[0]
            with Running(command=sensor_command, folder=tmp_path) as sensor:
                sensor.wait_for(lambda: sensor.out)
                _, _, asked = sensor.out[0].partition("#")
                with open_page(browser) as page:
                    page.goto(f"{origin}/#{asked}&gateway={address}&key={key}")
                    expect(page.get_by_role("status")).to_have_text("live")
                    drawn = re.compile(r"^\S+ \S+ \S+")  # two seconds of messages, at least
                    expect(page.locator("polyline")).to_have_attribute("points", drawn)
                    expect(page.locator("#now")).to_have_text(re.compile(r"^\d+(\.\d)?$"))
