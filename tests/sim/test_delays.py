"""Delay tables: the one that ships, those that people write, and those that are wrong."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from shoal.base.errors import ConfigError
from shoal.base.units import MS_NS, US_NS
from shoal.sim import ConstantDelay, RegionDelay, load_table
from shoal.sim.delays import RegionTable, parse_table, table_of

GOOD = "from\tnear\tfar\nnear\t0.5\t80\nfar\t90.25\t1\n"


def test_the_aws_table_has_the_published_mean() -> None:
    """68.64 ms, the mean unicast delay of the Streamr paper, counts each region with itself too:
    nodes that are spread evenly have neighbours in their own region. Over distinct regions
    alone it would be 73.21 ms."""
    table = load_table("aws")
    assert len(table.names) == 16
    assert round(table.mean_ns() / MS_NS, 2) == 68.64
    apart = [
        delay_ns
        for i, row in enumerate(table.delays_ns)
        for j, delay_ns in enumerate(row)
        if i != j
    ]
    assert round(sum(apart) / len(apart) / MS_NS, 2) == 73.21


def test_the_aws_table_is_not_symmetric_and_near_within_a_region() -> None:
    table = load_table("aws")
    frankfurt, oregon = table.names.index("eu-central-1"), table.names.index("us-west-2")
    assert table.delays_ns[frankfurt][oregon] == 82_260 * US_NS
    assert table.delays_ns[oregon][frankfurt] == 78_100 * US_NS
    assert all(row[i] < MS_NS for i, row in enumerate(table.delays_ns))


def test_nodes_fill_the_regions_in_turn() -> None:
    model = RegionDelay(parse_table(GOOD, "good"))
    assert [model.region(n) for n in range(4)] == ["near", "far", "near", "far"]
    assert model.one_way_ns(0, 1) == model.one_way_ns(2, 3) == 80 * MS_NS
    assert model.one_way_ns(1, 0) == 90_250 * US_NS
    assert model.one_way_ns(0, 2) == 500 * US_NS


def test_nodes_can_be_placed_by_name() -> None:
    model = RegionDelay(parse_table(GOOD, "good"), places=["far", "far", "near"])
    assert [model.region(n) for n in range(4)] == ["far", "far", "near", "far"]
    assert model.one_way_ns(0, 1) == MS_NS
    with pytest.raises(ConfigError, match="unknown region 'mars': the table has near, far"):
        RegionDelay(parse_table(GOOD, "good"), places=["near", "mars"])


def test_a_constant_delay_is_constant() -> None:
    model = ConstantDelay(7)
    assert model.one_way_ns(0, 1) == model.one_way_ns(5, 5) == 7
    assert model.region(0) == model.region(1)


def test_any_file_can_be_given(tmp_path: Path) -> None:
    file = tmp_path / "mine.tsv"
    file.write_text(GOOD + "\n\n")
    assert load_table(str(file)) == parse_table(GOOD, "good")
    packed = tmp_path / "mine.tsv.gz"
    packed.write_bytes(gzip.compress(GOOD.encode()))
    assert load_table(str(packed)) == parse_table(GOOD, "good")


def test_the_regions_of_some_nodes_are_a_table_again() -> None:
    model = RegionDelay(parse_table(GOOD, "good"))
    assert table_of(model, [3, 0, 2]) == parse_table(
        "from\tfar\tnear\nfar\t1\t90.25\nnear\t80\t0.5\n", "by name"
    )
    assert table_of(model, [2]) == parse_table("from\tnear\nnear\t0.5\n", "one")
    assert table_of(model, []) == RegionTable((), ())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "t.tsv: a delay table needs a header"),
        ("from\ta\n", "t.tsv: a delay table needs a header"),
        ("from\na\n", "row 1: a header names every region once"),
        ("from\ta\ta\na\t1\t2\na\t1\t2\n", "row 1: a header names every region once"),
        ("from\ta\t\na\t1\t2\n\t1\t2\n", "row 1: a header names every region once"),
        ("from\ta\tb\na\t1\nb\t1\t2\n", "row 2: 1 delays, but 2 regions"),
        ("from\ta\tb\na\t1\t2\t3\nb\t1\t2\n", "row 2: 3 delays, but 2 regions"),
        ("from\ta\tb\nb\t1\t2\na\t1\t2\n", "row 2: 'b' out of order"),
        ("from\ta\tb\na\t1\t2\nb\t1\t2\nc\t1\t2\n", "row 4: 'c' out of order"),
        ("from\ta\tb\na\t1\t2\n", "2 regions in the header, 1 rows"),
        ("from\ta\tb\na\t1\t2\nb\t1\tfast\n", "row 3: 'fast' is not a delay in milliseconds"),
        ("from\ta\tb\na\t1\t2\nb\t1\t\n", "row 3: '' is not a delay in milliseconds"),
        ("from\ta\tb\na\t-1\t2\nb\t1\t2\n", "row 2: '-1' is not a delay in milliseconds"),
        ("from\ta\tb\na\tnan\t2\nb\t1\t2\n", "row 2: 'nan' is not a delay in milliseconds"),
        ("from\ta\tb\na\tinf\t2\nb\t1\t2\n", "row 2: 'inf' is not a delay in milliseconds"),
        ("\nfrom\ta\tb\n\na\t1\t2\nb\t1\tx\n", "row 5: 'x' is not a delay"),
    ],
)
def test_a_malformed_table_is_refused_by_row(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "t.tsv"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_table(str(file))
    assert complaint in str(refused.value)
    assert "t.tsv" in str(refused.value)


def test_a_table_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="no delay table 'nowhere': give a TSV file or one of aws"
    ):
        load_table("nowhere")
    packed = gzip.compress(GOOD.encode())
    damaged = packed[:12] + b"\xff\xff" + packed[14:]
    for name, content in [
        ("binary.tsv", b"\xff\xfe\x00"),
        ("text.tsv.gz", GOOD.encode()),
        ("short.tsv.gz", packed[:-9]),
        ("damaged.tsv.gz", damaged),
    ]:
        file = tmp_path / name
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=rf"{name}: no delay table can be read"):
            load_table(str(file))
