"""`shoal registry` and `shoal stream create|edit|grant|revoke|delete`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shoal.base.ids import show_node_id
from shoal.identity import PrivateKey, ScryptCost, SeededEntropy, create_keystore
from tests.cli.test_app import ends
from tests.registry.anvil import Anvil

pytest.importorskip("pyrevm", reason="no EVM is made for this Python")

ALICE = PrivateKey.generate(SeededEntropy("alice"))
ID = show_node_id(ALICE.address)
BOB = "0x" + "b0" * 20
NETWORK = '[node]\nkey = "node.key"\npassphrase = "env:SHOAL_TEST_PASSPHRASE"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A network file with a key and an embedded registry that is not made yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_TEST_PASSPHRASE", "x")
    cheap = ScryptCost(n=2, r=8, p=1)
    create_keystore(tmp_path / "node.key", ALICE, "x", SeededEntropy("salt"), cost=cheap)
    (tmp_path / "shoal.toml").write_text(NETWORK + '[registry]\nfolder = "registry"\n')
    return tmp_path


def says(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """What a command prints that ends well."""
    code = ends(*arguments)
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return printed.out.splitlines()


def test_a_stream_from_its_making_to_its_end(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contract = says(capsys, "registry", "deploy")[0].removeprefix("contract = ").strip('"')
    says(capsys, "registry", "put", "tracker", BOB, "ws://127.0.0.1:7700")
    assert says(capsys, "registry", "show")[1:] == [
        f"contract {contract}",
        "block 4",
        f"trackers, listed by {ID}:",
        f"  {BOB} ws://127.0.0.1:7700",
        f"storage nodes, listed by {ID}:",
    ]
    options = ["--partitions", "4", "--metadata", '{"a": 1}', "--tracker", BOB]
    assert says(capsys, "stream", "create", "/city/cars", *options) == [f"{ID}/city/cars"]
    until = "2100-01-01T00:00:00Z"
    says(capsys, "stream", "grant", "/city/cars", "publish,edit", BOB, "--until", until)
    says(capsys, "stream", "grant", f"{ID}/city/cars", "subscribe", "everybody")
    says(capsys, "stream", "revoke", "/city/cars", "edit", BOB)
    assert says(capsys, "registry", "show", "/city/cars", "--address", BOB, "--address", ID) == [
        f"{ID}/city/cars",
        'metadata {"a": 1}',
        "partitions 4",
        "degree of the tracker",
        f"tracker {BOB}",
        "everybody may subscribe",
        f"{BOB} may publish until {until}, subscribe",
        f"{ID} may edit, delete, publish, subscribe, grant",
    ]
    says(capsys, "stream", "edit", "/city/cars", "--partitions", "8", "--tracker", "none")
    says(capsys, "stream", "edit", "/city/cars", "--degree", "6", "--storage", BOB)
    assert says(capsys, "registry", "show", "/city/cars")[1:5] == [
        'metadata {"a": 1}',
        "partitions 8",
        "degree 6",
        f"storage node {BOB}",
    ]
    says(capsys, "stream", "delete", "/city/cars")
    says(capsys, "registry", "remove", "tracker", BOB)
    says(capsys, "registry", "hand-over", "tracker", BOB)
    assert f"trackers, listed by {BOB}:" in says(capsys, "registry", "show")
    assert ends("registry", "show", "/city/cars") == 2
    assert "`shoal stream create /city/cars`" in capsys.readouterr().err


def test_the_same_on_a_chain(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    anvil = Anvil(folder)

    async def begin() -> None:
        await anvil.start()
        await anvil.enrich(ALICE.address)

    asyncio.run(begin())
    try:
        section = f'[registry]\nurl = "{anvil.url}"\nfinality_blocks = 0\npoll_s = 0.05\n'
        (folder / "shoal.toml").write_text(NETWORK + section)
        assert ends("registry", "show") == 2
        assert "registry.contract: write the address that" in capsys.readouterr().err
        (contract,) = says(capsys, "registry", "deploy")
        (folder / "shoal.toml").write_text(NETWORK + section + contract + "\n")
        assert says(capsys, "stream", "create", "/a") == [f"{ID}/a"]
        assert says(capsys, "registry", "show", "/a")[0] == f"{ID}/a"
        assert ends("registry", "deploy") == 2
        assert "is named already: remove it to make another" in capsys.readouterr().err
    finally:
        anvil.stop()
    assert ends("registry", "show") == 1
    assert f"the registry's chain at {anvil.url}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["registry", "show"], "make one with `shoal registry deploy`"),
        (["stream", "create", "cars"], "'cars': write /PATH"),
        (["stream", "grant", "/a", "fly", BOB], "'fly' is no permission: write one of edit, del"),
        (["stream", "grant", "/a", "edit", "bob"], "'bob' is not a node id"),
        (["stream", "grant", "/a", "edit", "16Uiu2HAbob"], "'16Uiu2HAbob' is not a secp256k1 peer"),
        (["stream", "grant", "/a", "edit", BOB, "--until", "noon"], "--until 'noon': write"),
        (["stream", "edit", "/a"], "nothing to change: name what is to be different"),
        (["registry", "put", "tracker", BOB, "nowhere"], "'nowhere' is no address"),
    ],
)
def test_what_is_wrong_is_one_line_with_a_remedy(
    folder: Path, arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends(*arguments) == 2
    printed = capsys.readouterr()
    assert complaint in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (NETWORK, "the network file names none: add [registry]"),
        (NETWORK + "[registry]\n", 'give folder = "registry"'),
        (NETWORK + '[registry]\nfolder = "a"\nurl = "http://h"\n', 'give folder = "registry"'),
        (NETWORK + '[registry]\nurl = "ws://h:1"\n', "write http://HOST:PORT"),
        (NETWORK + '[registry]\nfolder = "a"\ncontract = "0x1"\n', "'0x1' is not a node id"),
        (NETWORK + '[registry]\nfolder = "a"\nstaleness_s = 0\n', "registry.staleness_s: "),
    ],
)
def test_what_is_wrong_in_the_file_is_named(
    folder: Path, text: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "shoal.toml").write_text(text)
    assert ends("registry", "show") == 2
    assert complaint in capsys.readouterr().err


def test_a_registry_needs_an_admin_whose_key_stays(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "shoal.toml").write_text('[registry]\nfolder = "registry"\n')
    assert ends("registry", "deploy") == 2
    assert "make a key with `shoal key new`" in capsys.readouterr().err
    assert not (folder / "registry").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["registry"],
        *(["registry", name] for name in ("deploy", "show", "put", "remove")),
        *(["stream", name] for name in ("create", "grant", "revoke", "delete")),
    ],
)
def test_every_command_has_an_example(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends(*command, "--help") == 0
    assert f"Example: shoal {command[0]}" in capsys.readouterr().out
