"""Which requests of web pages may come in, by what the browser says of them."""

from __future__ import annotations

import pytest

from shoal.base.page_guard import PageGuard, is_loopback_address, is_loopback_name

OWN = "http://127.0.0.1:7780"
HERE = {"Host": "127.0.0.1:7780"}
LISTED = PageGuard("gateway", ("https://app.example",), ("proxy.example",))
ALL = PageGuard("gateway", ("*",))
LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
FRAME = {**LINK, "Sec-Fetch-Dest": "iframe"}
IMAGE = {
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Mode": "no-cors",
    "Sec-Fetch-Dest": "image",
}


def reason(
    headers: dict[str, str],
    guard: PageGuard = LISTED,
    *,
    loopback: bool = True,
    entry: bool = False,
) -> str | None:
    refused = guard.refusal({**HERE, **headers}, loopback=loopback, own=OWN, entry=entry)
    return None if refused is None else refused.reason


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),  # a program
        ({"Sec-Fetch-Site": "none"}, None),  # typed
        ({"Sec-Fetch-Site": "same-origin"}, None),
        ({"Sec-Fetch-Site": "same-origin", "Origin": OWN}, None),
        ({"Sec-Fetch-Site": "same-site"}, "foreign-page"),  # another port of this machine
        ({"Sec-Fetch-Site": "something new"}, "foreign-page"),
        (IMAGE, "foreign-page"),
        (LINK, "foreign-page"),
        ({**IMAGE, "Origin": "https://app.example"}, None),
        ({**IMAGE, "Origin": OWN}, "foreign-page"),  # no browser says so of one request
        ({"Origin": "null"}, "foreign-page"),
        ({"Origin": ""}, "foreign-page"),
        ({"Origin": "https://app.example.evil.example"}, "foreign-page"),
        ({"Host": "evil.example"}, "foreign-host"),
        ({"Host": "evil.example", "Origin": "https://app.example"}, "foreign-host"),
        ({"Host": "proxy.example:443"}, None),
        ({"Host": "["}, "foreign-host"),
        ({"Host": ""}, "foreign-host"),
    ],
)
def test_who_may_come_in(headers: dict[str, str], expected: str | None) -> None:
    assert reason(headers) == expected


def test_a_link_leads_to_a_page_without_data_and_nothing_else() -> None:
    assert reason(LINK, entry=True) is None
    for headers in (IMAGE, FRAME, {"Sec-Fetch-Site": "cross-site"}):
        assert reason(headers, entry=True) == "foreign-page"
    assert reason({**LINK, "Origin": "https://evil.example"}, entry=True) == "foreign-page"
    assert reason({**LINK, "Host": "evil.example"}, entry=True) == "foreign-host"


def test_all_pages_may_come_where_all_are_listed_but_under_no_other_name() -> None:
    assert reason(IMAGE, ALL) is None
    assert reason({"Origin": "https://evil.example"}, ALL) is None
    assert reason({"Host": "evil.example"}, ALL) == "foreign-host"


def test_beyond_loopback_names_are_not_known() -> None:
    assert reason({"Host": "node.example"}, loopback=False) is None


def test_what_is_loopback() -> None:
    assert all(map(is_loopback_name, ("localhost", "LOCALHOST", "127.0.0.1", "127.8.8.8", "::1")))
    assert not any(map(is_loopback_name, ("", "localhost.example", "0.0.0.0", "10.0.0.1")))
    assert is_loopback_address("::ffff:127.0.0.1")
    assert not is_loopback_address("::ffff:10.0.0.1")
