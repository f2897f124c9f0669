"""Caches of nodes: their lines, what is left out, and the file."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from shoal.base.ids import Contact, NodeId, show_node_id
from shoal.config.sections import is_public
from shoal.node.search.client import (
    CACHE_BYTES_MAX,
    HOSTS_MAX,
    parse_hosts,
    read_host_cache,
    show_hosts,
    write_host_cache,
)

ONE, TWO = NodeId(b"\x01" * 20), NodeId(b"\x02" * 20)
PLAIN = Contact(ONE, ("ws://192.0.2.7:7700",))
SECURE = Contact(TWO, ("wss://node.example:443",))


def test_a_line_is_an_address_and_who_must_answer_there() -> None:
    text = f"192.0.2.7:7700 {show_node_id(ONE)}\nwss://node.example:443 {show_node_id(TWO)}\n"
    assert show_hosts([PLAIN, SECURE]) == text
    assert parse_hosts(text, "test") == [PLAIN, SECURE]
    six = Contact(ONE, ("ws://[2001:db8::1]:7700",))
    assert parse_hosts(show_hosts([six]), "test") == [six]


def test_one_that_cannot_be_dialled_is_not_written() -> None:
    assert show_hosts([Contact(ONE), PLAIN]) == show_hosts([PLAIN])


def test_what_makes_no_sense_is_left_out_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    text = (
        "# hosts\n\n"
        "192.0.2.7:7700\n"
        "192.0.2.7 0x12\n"
        f"192.0.2.7 {show_node_id(TWO)}\n"
        f"http://192.0.2.7:80 {show_node_id(TWO)}\n"
        f"{'x' * 300}:1 {show_node_id(TWO)}\n"
        f"192.0.2.7:7700   {show_node_id(ONE).upper().replace('X', 'x')}  # the first\n"
        f"192.0.2.8:7700 {show_node_id(ONE)}\n"
    )
    with caplog.at_level(logging.WARNING):
        assert parse_hosts(text, "hosts") == [PLAIN], "each node once"
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 5
    assert lines[0].startswith("hosts, line 3 is left out: '192.0.2.7:7700' is no node")
    assert all("write IP:PORT 0xID" in line and len(line) < 300 for line in lines)


def test_a_cache_has_a_bounded_number_of_nodes() -> None:
    many = [Contact(NodeId(bytes([n]) * 20), ("ws://192.0.2.7:1",)) for n in range(HOSTS_MAX + 9)]
    assert len(show_hosts(many).splitlines()) == HOSTS_MAX
    text = "".join(f"192.0.2.7:1 {show_node_id(one.node)}\n" for one in many)
    assert parse_hosts(text, "test") == many[:HOSTS_MAX]


def test_the_file_is_written_whole_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    assert read_host_cache(path) == []
    write_host_cache(path, [PLAIN, SECURE])
    assert read_host_cache(path) == [PLAIN, SECURE]
    write_host_cache(path, [SECURE])
    assert read_host_cache(path) == [SECURE]
    write_host_cache(path, [])
    assert read_host_cache(path) == [SECURE], "who has met nobody forgets nobody"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_used_is_no_reason_to_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert read_host_cache(tmp_path) == []
        write_host_cache(tmp_path / "missing" / "hosts", [PLAIN])
    assert "cannot be read: Is a directory" in caplog.text
    assert "cannot be written: No such file" in caplog.text
    (tmp_path / "binary").write_bytes(b"\xff" * 2 * CACHE_BYTES_MAX)
    assert read_host_cache(tmp_path / "binary") == []


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("ws://8.8.8.8:1", True),
        ("wss://[2606:4700::1]:1", True),
        ("ws://127.0.0.1:1", False),
        ("ws://192.168.1.1:1", False),
        ("ws://10.0.0.1:1", False),
        ("ws://169.254.169.254:80", False),
        ("ws://[::1]:1", False),
        ("ws://[fd00::1]:1", False),
        ("ws://printer.lan:1", False),
    ],
)
def test_which_addresses_strangers_may_name(address: str, public: bool) -> None:
    assert is_public(address) == public
