"""The network file: what it may say, and what is said about it when it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.base.errors import ConfigError, NotFound, UsageError
from shoal.base.ids import Contact, parse_node_id, parse_stream_id
from shoal.config.network_file import read_passphrase, tracker_contact
from shoal.config.sections import NodeSection, PeerEntry, TopicsSection
from shoal.identity.topics.cid import cid_of, show_cid
from shoal.node import NetworkFile, load_network_file

ID = "0x7e5f4552091a69125d5dfcb7b8c2659029395bdf"
TRACKER = f'[[trackers]]\nid = "{ID}"\naddresses = ["ws://127.0.0.1:7700"]\n'
BOOTSTRAP = f'[[dht.bootstrap]]\nid = "{ID}"\naddresses = ["ws://127.0.0.1:7720"]\n'

WHOLE = f"""
[node]
key = "node.key"
passphrase = "env:SHOAL_PASSPHRASE"
listen = ["ws://127.0.0.1:0", "wss://[::1]:7701"]
certificate = "node.pem"

{TRACKER}

[tracker]
degree = 6

[gateway]
listen = "127.0.0.1:7780"
"""


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "shoal.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    network = load_network_file(str(written(tmp_path, WHOLE)))
    assert network.node == NodeSection(
        "node.key",
        "env:SHOAL_PASSPHRASE",
        ("ws://127.0.0.1:0", "wss://[::1]:7701"),
        "node.pem",
    )
    assert network.trackers[0].contact() == Contact(parse_node_id(ID), ("ws://127.0.0.1:7700",))
    assert network.tracker is not None
    assert network.tracker.degree == 6
    assert network.gateway is not None
    assert network.gateway.listen == "127.0.0.1:7780"
    assert network.path("node.key") == tmp_path / "node.key"
    assert network.path("/etc/node.key") == Path("/etc/node.key")


def test_an_empty_file_is_a_node_that_knows_nobody(tmp_path: Path) -> None:
    network = load_network_file(written(tmp_path, ""))
    assert network.node.listen == ("ws://127.0.0.1:0",)
    assert network.trackers_of(Contact(parse_node_id(ID))) == ()


def test_the_streams_go_to_the_tracker_that_is_named_else_to_oneself(tmp_path: Path) -> None:
    own = Contact(parse_node_id("0x" + "11" * 20))
    both = load_network_file(written(tmp_path, TRACKER + "[tracker]\n"))
    (tracker,) = both.trackers_of(own)
    assert tracker.node == parse_node_id(ID)
    alone = load_network_file(written(tmp_path, "[tracker]\n"))
    assert alone.trackers_of(own) == (own,)


def test_a_stream_has_the_settings_of_its_own_entry_else_those_for_all(tmp_path: Path) -> None:
    other = "0x" + "22" * 20
    text = (
        f'{TRACKER}[[storage_nodes]]\nid = "{other}"\naddresses = ["ws://127.0.0.1:7710"]\n'
        f'[[streams]]\nid = "*"\npartitions = 2\nstorage = ["{other}"]\n'
        f'[[streams]]\nid = "{ID.upper().replace("X", "x")}/a"\ntrackers = ["{ID}"]\ndegree = 6\n'
    )
    network = load_network_file(written(tmp_path, text))
    own, any_other = parse_stream_id(f"{ID}/a"), parse_stream_id(f"{ID}/b")
    assert network.stream_settings(own).trackers == (ID,)
    assert network.stream_settings(own).degree == 6
    assert network.stream_settings(own).partitions == 1
    assert network.storage_of(own) == ()
    assert network.stream_settings(any_other).partitions == 2
    assert [contact.node for contact in network.storage_of(any_other)] == [parse_node_id(other)]
    assert load_network_file(written(tmp_path, "")).stream_settings(own).partitions == 1


def test_a_node_of_the_dht_says_whom_it_meets_and_what_it_keeps(tmp_path: Path) -> None:
    pinned = show_cid(cid_of(b"topic"))
    text = f'[dht]\n{BOOTSTRAP}[topics]\nfolder = "t"\ndays_max = 0.5\npinned = ["{pinned}"]\n'
    network = load_network_file(written(tmp_path, text))
    assert network.bootstrap[0].contact() == Contact(parse_node_id(ID), ("ws://127.0.0.1:7720",))
    assert network.topics == TopicsSection("t", days_max=0.5, pinned=(pinned,))
    assert network.dht is not None
    assert load_network_file(written(tmp_path, "[dht]\n")).topics is None
    assert load_network_file(written(tmp_path, "")).dht is None


@pytest.mark.parametrize("role", ["dht", "search"])
def test_only_its_section_makes_a_node_a_member(tmp_path: Path, role: str) -> None:
    """One file can name the bootstrap nodes to all machines, of which some are no members."""
    entries = BOOTSTRAP.replace("dht", role)
    own = f"# a comment that says [{role}]\n[tracker]\n"
    assert getattr(load_network_file(written(tmp_path, own + entries)), role) is None
    for member in (
        f"[{role}]\n{entries}",
        f"{entries}[{role}]\n",
        f"{entries}[ {role} ]  # after it",
        f'{role} = {{ bootstrap = [{{ id = "{ID}", addresses = ["ws://127.0.0.1:1"] }}] }}\n',
    ):
        section = getattr(load_network_file(written(tmp_path, f"{member}\n")), role)
        assert len(section.bootstrap) == 1
    with pytest.raises(ConfigError, match="two entries have the same id"):
        load_network_file(written(tmp_path, entries * 2))


def test_a_node_of_the_search_network_says_how_it_gets_in(tmp_path: Path) -> None:
    text = (
        '[search]\nhost_cache = "hosts"\nweb_cache = "https://example.org/hosts"\nclient = true\n'
        f"confidence = 0.9\nupload_kib_s = 64.5\nlocations = 5\nannounce = false\n"
        f"{BOOTSTRAP.replace('dht', 'search')}"
    )
    search = load_network_file(written(tmp_path, text)).search
    assert search is not None
    assert search.bootstrap[0].contact() == Contact(parse_node_id(ID), ("ws://127.0.0.1:7720",))
    assert (search.host_cache, search.web_cache) == ("hosts", "https://example.org/hosts")
    assert (search.client, search.announce, search.locations) == (True, False, 5)
    assert (search.confidence, search.upload_kib_s) == (0.9, 64.5)
    bare = load_network_file(written(tmp_path, "[search]\n")).search
    assert bare is not None
    assert (bare.bootstrap, bare.client, bare.announce) == ((), False, True)
    assert load_network_file(written(tmp_path, "")).search is None


def test_a_stream_keeps_all_its_feeds_unless_it_says_otherwise(tmp_path: Path) -> None:
    text = (
        '[[streams]]\nid = "*"\nredundant_feeds = 1\n'
        f'[[streams]]\nid = "{ID}/none"\nredundant_feeds = 0\n'
        f'[[streams]]\nid = "{ID}/all"\nredundant_feeds = "all"\n'
    )
    network = load_network_file(written(tmp_path, text))
    names = ("none", "all", "other")
    feeds = [network.redundant_feeds(parse_stream_id(f"{ID}/{name}")) for name in names]
    assert feeds == [0, None, 1]
    silent = load_network_file(written(tmp_path, ""))
    assert silent.redundant_feeds(parse_stream_id(f"{ID}/none")) is None


def test_a_file_that_is_not_there_names_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "missing.toml"
    with pytest.raises(NotFound, match=r"missing\.toml: `shoal up` makes one"):
        load_network_file(path)
    with pytest.raises(NotFound, match="write one"):
        load_network_file(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read: File name too long"):
        load_network_file(tmp_path / ("x" * 300))  # as in a folder that nobody may enter


@pytest.mark.parametrize(
    ("text", "field", "remedy"),
    [
        ("[node]\nlisten = 5", "node.listen", "expected `array`"),
        ('[node]\nlisten = ["http://x"]', "listen", "write ws://HOST:PORT"),
        ('[node]\nlisten = ["ws://x"]', "listen", "write ws://HOST:PORT"),
        ('[node]\nlisten = ["ws://x:99999"]', "listen", "write ws://HOST:PORT"),
        ('[node]\nlisten = ["ws://[x:1"]', "listen", "write ws://HOST:PORT"),
        ('[node]\nlisten = ["wss://127.0.0.1:1"]', "listen", "name its PEM file"),
        ('[node]\npassphrase = "hunter2"', "passphrase", "write env:NAME or file:PATH"),
        ('[node]\npassphrase = "env:"', "passphrase", "write env:NAME or file:PATH"),
        ("[node]\nkey = 1", "node.key", "expected `str"),
        ("[node]\nkye = 'x'", "node", "kye"),
        ("[nodes]", "nodes", "unknown field"),
        ('folder = "/"', "folder", "the file's own folder"),
        ("[tracker]\ndegree = 2", "tracker.degree", "expected `int` >= 3"),
        ("[tracker]\ndegree = 65", "tracker.degree", "expected `int` <= 64"),
        (f'[[trackers]]\nid = "{ID}"', "trackers", "missing required field `addresses`"),
        (f'[[trackers]]\nid = "{ID}"\naddresses = []', "trackers[0].addresses", "length >= 1"),
        (
            f'[[trackers]]\nid = "{ID}"\naddresses = ["tcp:1"]',
            "trackers",
            "write ws://HOST:PORT",
        ),
        (
            '[[trackers]]\nid = "0x12"\naddresses = ["ws://x:1"]',
            "trackers",
            "write 0x and 40 hex digits",
        ),
        (TRACKER * 2, "trackers", "two entries have the same id"),
        ("[[streams]]\n[[streams]]", "streams", "two entries have the same id"),
        ('[[streams]]\nid = "x"', "streams", "write the owner's address"),
        ("[[streams]]\npartitions = 0", "streams[0].partitions", "expected `int` >= 1"),
        ("[[streams]]\nredundant_feeds = -1", "streams[0].redundant_feeds", "expected `int` >= 0"),
        ('[[streams]]\nredundant_feeds = "some"', "streams[0].redundant_feeds", "'^all$'"),
        (f'[[streams]]\ntrackers = ["{ID}"]', "streams.trackers", "add it to [[trackers]]"),
        (f'[[streams]]\nstorage = ["{ID}"]', "streams.storage", "add it to [[storage_nodes]]"),
        ('[node]\nlisten = ["ws://0.0.0.0:7700"]', "listen", "as in ws://10.0.0.1:7700"),
        ('[node]\nlisten = ["ws://[::]:7700"]', "listen", "as in ws://10.0.0.1:7700"),
        (TRACKER.replace("127.0.0.1", "0.0.0.0"), "addresses", "told to others"),
        ("[storage]\ngigabytes_max = 0", "storage.gigabytes_max", "> 0"),
        ("[gateway]\nlisten = 7780", "gateway.listen", "expected `str`"),
        (BOOTSTRAP * 2, "dht.bootstrap", "two entries have the same id"),
        (f"{BOOTSTRAP}[topics]", "topics", "add [dht]"),
        ("[dht]\nprefix_table_max = 0", "dht.prefix_table_max", "expected `int` >= 1"),
        ("[topics]", "topics", "add [dht]"),
        (
            BOOTSTRAP.replace("dht", "search") * 2,
            "search.bootstrap",
            "two entries have the same id",
        ),
        ("[search]\nlocations = 1", "search.locations", "expected `int` >= 2"),
        ("[search]\nlocations = 33", "search.locations", "expected `int` <= 32"),
        ("[search]\nconfidence = 1.0", "search.confidence", "expected `float` < 1"),
        ("[search]\nupload_kib_s = 0", "search.upload_kib_s", "> 0"),
        ('[search]\nweb_cache = "hosts.example"', "web_cache", "write https://HOST/PATH"),
        ('[search]\nweb_cache = "http://[x"', "web_cache", "write https://HOST/PATH"),
        ("[search]\nclient = true", "client", "add [[search.bootstrap]]"),
        ('[dht]\n[topics]\npinned = ["zdpuX"]', "topics", "'zdpuX' is not the CID of a topic"),
        ("[dht]\n[topics]\nmegabytes_max = 0", "topics.megabytes_max", "> 0"),
        ("[dht]\n[topics]\nchildren_max = 257", "topics.children_max", "expected `int` <= 256"),
    ],
)
def test_what_is_wrong_is_named_with_file_field_and_remedy(
    tmp_path: Path, text: str, field: str, remedy: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_network_file(path)
    complaint = str(caught.value)
    assert complaint.startswith(f"{path}: ")
    assert field in complaint
    assert remedy in complaint
    assert "\n" not in complaint
    assert "hunter2" not in complaint


@pytest.mark.parametrize("text", [b"a = ", b"\xff\xfe", b"x = 1\nx = 2", b"[node"])
def test_what_is_no_toml_says_where(tmp_path: Path, text: bytes) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=r"shoal\.toml is no TOML: ."):
        load_network_file(path)


def test_misuse_from_python_is_refused_alike() -> None:
    entry = tracker_contact(parse_node_id(ID), ["ws://127.0.0.1:1"])
    with pytest.raises(ConfigError, match="two entries have the same id"):
        NetworkFile(trackers=(entry, entry))
    with pytest.raises(UsageError, match="40 hex digits"):
        PeerEntry("x", ("ws://127.0.0.1:1",))
    with pytest.raises(ConfigError, match="write ws://HOST:PORT"):
        NodeSection(listen=("x",))


# Passphrases


def test_passphrases_come_from_the_environment_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_TEST_PASSPHRASE", " from env ")
    assert read_passphrase("env:SHOAL_TEST_PASSPHRASE", tmp_path) == " from env "
    (tmp_path / "secret").write_text(" from file \r\n")
    assert read_passphrase("file:secret", tmp_path) == " from file "
    assert read_passphrase(f"file:{tmp_path}/secret", Path()) == " from file "
    text = '[node]\nkey = "k"\npassphrase = "file:secret"'
    assert load_network_file(written(tmp_path, text)).passphrase() == " from file "
    assert load_network_file(written(tmp_path, "")).passphrase() == ""


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("env:SHOAL_TEST_UNSET", "set the variable SHOAL_TEST_UNSET"),
        ("file:missing", "cannot read .*missing: No such file"),
        ("file:.", "cannot read .*: Is a directory"),
        ("file:binary", "cannot read .*binary: it is no text"),
        ("hunter2", "write env:NAME or file:PATH"),
        ("pass:hunter2", "write env:NAME or file:PATH"),
    ],
)
def test_a_passphrase_that_cannot_be_had_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, complaint: str
) -> None:
    monkeypatch.delenv("SHOAL_TEST_UNSET", raising=False)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=complaint) as caught:
        read_passphrase(source, tmp_path)
    assert "hunter2" not in str(caught.value)
