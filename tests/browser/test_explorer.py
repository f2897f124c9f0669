"""The explorer in a browser, used as a person would. Every page checks that nothing was said on the
console, and that no request left the machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request, Route, expect

from tests.browser.chromium import PATIENCE_MS, open_chromium, open_page
from tests.browser.town import EVENTS, HOSTILE, MEMBERS, STREAM, ExplorerTown, explorer_town
from tests.support.synthetic_run import SyntheticRun

pytestmark = pytest.mark.browser

NODES = 2048
PHONE = {"width": 390, "height": 844}
LEAST_FRAMES = 10  # in a second: that it goes on at all; how fast is benchmarks/explorer.py

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab") / "results"
    SyntheticRun(NODES).write(folder)
    return folder


@pytest.fixture(scope="module")
def town(results: Path) -> Iterator[ExplorerTown]:
    with explorer_town(results) as town:
        yield town


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_chromium() as browser:
        yield browser


@pytest.fixture
def page(town: ExplorerTown, browser: Browser) -> Iterator[Page]:
    with open_page(browser) as page:
        page.goto(town.address + "/explorer/")
        yield page


def figure(page: Page, name: str) -> str:
    """The number under a name."""
    box = page.locator(".figures div").filter(has=page.get_by_text(name, exact=True))
    return box.locator("dd").inner_text()


def test_a_stream_is_seen_and_one_of_its_messages_followed(page: Page) -> None:
    expect(page.get_by_role("combobox", name="Stream")).to_contain_text(STREAM)
    expect(page.get_by_role("img", name=re.compile(f"{MEMBERS} nodes"))).to_be_visible()
    assert figure(page, "Nodes") == str(MEMBERS)
    # Of four neighbours each, and every message reaches all others.
    assert figure(page, "Links") == str(2 * MEMBERS)
    message = page.get_by_role("button", name=re.compile(f"{MEMBERS - 1} nodes")).first
    message.click()
    tree = page.get_by_test_id("path-tree")
    expect(tree.get_by_role("listitem")).to_have_count(MEMBERS)
    expect(tree).to_contain_text("publishes")
    expect(page.get_by_text("Links on the way")).to_be_visible()
    page.get_by_role("button", name="Play again").click()
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("heading", name="Messages")).to_be_visible()


def test_delays_are_measured_and_estimated(page: Page) -> None:
    delays = page.get_by_role("figure").filter(has_text="Delay of deliveries")
    expect(delays.get_by_text(re.compile(r"measured [\d.]+ ms")).first).to_be_attached()
    expect(delays.get_by_text(re.compile(r"estimated [\d.]+ ms")).first).to_be_attached()
    neighbours = page.get_by_role("figure").filter(has_text="Neighbours")
    expect(neighbours.get_by_text(f"{MEMBERS} values")).to_be_attached()


def test_the_picture_is_there_as_a_table_and_on_a_map(page: Page) -> None:
    page.get_by_role("button", name="Map", exact=True).click()
    expect(page.get_by_text("No node here says where it is")).to_have_count(0)
    page.get_by_role("button", name="Show as table").click()
    table = page.get_by_role("table", name=re.compile("nodes"))
    expect(table.get_by_role("row")).to_have_count(MEMBERS + 1)
    expect(table).to_contain_text("sa-east-1")
    page.get_by_role("button", name="Show as picture").click()
    expect(page.get_by_role("img", name=re.compile("Overlay"))).to_be_visible()


def test_everything_is_reached_by_keys_alone(page: Page) -> None:
    expect(
        page.get_by_role("button", name=re.compile(f"{MEMBERS - 1} nodes")).first
    ).to_be_visible()
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "() => { const e = document.activeElement, s = getComputedStyle(e);"
                " return [e.getAttribute('aria-label') || e.innerText || e.tagName,"
                " e.matches(':focus-visible') && s.outlineStyle !== 'none'] }"
            )
        )
        if reached[-1][0].startswith("0x"):
            break
    names = [name for name, _ in reached]
    assert names[0] == "Skip to content"
    for name in ("Streams", "Topics", "Search", "Lab", "Use dark colours", "Force", "Map"):
        assert name in names
    assert any(name.startswith("Overlay of") for name in names)
    assert [name for name, seen in reached if not seen] == []
    page.keyboard.press("Enter")  # on the first message
    expect(page.get_by_test_id("path-tree")).to_be_visible()
    picture = page.get_by_role("img", name=re.compile("Overlay"))
    picture.focus()
    for key in ("+", "ArrowLeft", "ArrowUp", "-", "0"):
        page.keyboard.press(key)


def test_who_comes_is_told(page: Page, town: ExplorerTown) -> None:
    expect(page.get_by_text("Nobody since this page was opened.")).to_be_visible()
    town.invite()
    churn = page.get_by_role("region", name="Who comes and goes")
    expect(churn.get_by_text("came")).to_be_visible()
    expect(churn.get_by_text("went")).to_be_visible()


def test_the_events_of_a_topic_and_its_tree_are_seen(page: Page) -> None:
    page.get_by_role("link", name="Topics").click()
    events = page.get_by_role("button", name=re.compile("^Event zdpu"))
    expect(events).to_have_count(EVENTS)
    events.nth(3).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("event")).to_contain_text(re.compile(r"event \d"))
    expect(page.get_by_test_id("event")).to_contain_text(re.compile(r"4 of \d+ nodes here"))
    expect(page.get_by_text("author", exact=True)).to_be_visible()


def test_a_search_finds_what_was_put(page: Page) -> None:
    page.get_by_role("link", name="Search").click()
    page.get_by_role("searchbox", name="Find documents").fill("title:air")
    page.get_by_label("How sure").select_option("0.9999")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Search").click()
    for title in ("Air in Kallio", "Air in Sörnäinen"):
        expect(page.get_by_role("button", name=re.compile(title))).to_be_visible()
    expect(page.get_by_text("Noise in Töölö")).to_have_count(0)
    expect(page.get_by_role("progressbar")).to_be_visible()
    circle = page.get_by_role("img", name=re.compile("met at [1-9]"))
    expect(circle).to_be_visible()


def test_what_others_wrote_is_text_and_nothing_else(page: Page) -> None:
    page.get_by_role("link", name="Search").click()
    page.get_by_role("searchbox").fill("hostile")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("button", name=re.compile("hostile")).first).to_contain_text(HOSTILE)
    page.get_by_role("link", name="Topics").click()
    page.get_by_role("button", name=re.compile("^Event zdpu")).first.click()
    expect(page.get_by_test_id("event")).to_contain_text(HOSTILE)
    assert page.evaluate("window.wasRun") is None


def test_a_question_that_cannot_be_read_is_explained(town: ExplorerTown, browser: Browser) -> None:
    with open_page(browser, refused=400) as page:
        page.goto(town.address + "/explorer/#/search")
        page.get_by_role("searchbox").fill("(((")
        page.get_by_role("button", name="Search").click()
        expect(page.get_by_role("alert")).to_be_visible()


def test_a_run_of_2048_nodes_is_played_and_moves(page: Page) -> None:
    page.get_by_role("link", name="Lab").click()
    picture = page.get_by_role("img", name=re.compile("2,048 nodes, 4,09. links"))
    expect(picture).to_be_visible()
    compared = page.get_by_role("row").filter(has_text="mean delay, ms")
    expect(compared).to_contain_text("288")
    page.get_by_role("button", name="Play", exact=True).click()
    box = picture.bounding_box()
    assert box is not None
    page.evaluate(
        "() => { window.frames_ = 0; const next = () => { window.frames_++;"
        " requestAnimationFrame(next) }; requestAnimationFrame(next) }"
    )
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for step in range(40):
        page.mouse.move(x + 3 * step, y + step)
        page.wait_for_timeout(50)
    page.mouse.up()
    assert page.evaluate("window.frames_") > 2 * LEAST_FRAMES
    told = page.get_by_test_id("progress")
    expect(told).to_contain_text(re.compile("2,048 of 2,048 nodes have message 1"))


def test_it_fits_a_phone(town: ExplorerTown, browser: Browser) -> None:
    with open_page(browser, viewport=PHONE, has_touch=True, is_mobile=True) as page:
        page.goto(town.address + "/explorer/")
        for view in ("Streams", "Topics", "Search", "Lab"):
            page.get_by_role("link", name=view, exact=True).tap()
            expect(page.get_by_role("heading", level=1)).to_be_attached()
            page.wait_for_timeout(200)
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], view


def test_light_and_dark_by_system_and_by_choice(town: ExplorerTown, browser: Browser) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    with open_page(browser, color_scheme="dark") as page:
        page.goto(town.address + "/explorer/")
        dark = page.evaluate(paper)
        page.get_by_role("button", name="Use light colours").click()
        light = page.evaluate(paper)
        assert light != dark
        page.reload()
        expect(page.get_by_role("button", name="Use dark colours")).to_be_visible()
        assert page.evaluate(paper) == light


def test_who_wants_no_motion_sees_a_path_at_once(town: ExplorerTown, browser: Browser) -> None:
    with open_page(browser, reduced_motion="reduce") as page:
        page.goto(town.address + "/explorer/#/lab")
        page.get_by_role("button", name="Play", exact=True).click()
        told = page.get_by_test_id("progress")
        expect(told).to_contain_text("2,048 of 2,048", timeout=3000)


def test_a_gateway_with_keys_is_asked_with_one(town: ExplorerTown, browser: Browser) -> None:
    def guarded(route: Route, request: Request) -> None:
        if request.headers.get("authorization") == "Bearer secret":
            route.continue_()
        else:
            route.fulfill(status=401, json={"error": "no key"})

    with open_page(browser, refused=401) as page:
        page.route("**/observe/**", guarded)
        page.goto(town.address + "/explorer/")
        page.get_by_label("API key").fill("secret")
        page.get_by_role("button", name="Enter").click()
        expect(page.get_by_role("img", name=re.compile("Overlay"))).to_be_visible()


def test_where_there_is_nothing_the_next_command_is_named(browser: Browser, tmp_path: Path) -> None:
    with explorer_town(tmp_path / "results", members=0) as town, open_page(browser) as page:
        page.goto(town.address + "/explorer/")
        expect(page.get_by_text("shoal stream publish")).to_be_visible()
        page.get_by_role("link", name="Topics").click()
        expect(page.get_by_text("shoal topic create")).to_be_visible()
        page.get_by_role("link", name="Search").click()
        expect(page.get_by_text("shoal doc put")).to_be_visible()
        page.get_by_role("link", name="Lab").click()
        expect(page.get_by_text("shoal lab run streams-2048 --out results")).to_be_visible()
