"""Scenario files: what they say, and what is said when they are wrong."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import pytest

from shoal.base.errors import ConfigError, UsageError
from shoal.base.units import MS_NS
from shoal.sim.delays import ConstantDelay, RegionDelay
from shoal.sim.faults import Crash, Loss
from shoal_lab.scenarios.scenario import Scenario, delay_model, load_scenario, parse_scenario


def parse(text: str) -> Scenario:
    return parse_scenario({"name": "test", **tomllib.loads(text)}, "test.toml")


def test_everything_but_the_name_has_a_default() -> None:
    scenario = parse("")
    assert scenario.protocol == "streams"
    assert scenario.network.nodes == 64
    assert scenario.network.degree == 4
    assert scenario.faults == ()


def test_a_file_is_read_with_its_faults(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        """
        about = "mine"
        seed = 9
        [network]
        nodes = 8
        delays = 12.5
        wire = true
        [workload]
        messages = 3
        publishers = "in-turn"
        [[faults]]
        kind = "loss"
        probability = 0.1
        end_s = 5
        [[faults]]
        kind = "crash"
        fraction = 0.5
        start_s = 2
        """
    )
    scenario = load_scenario(file)
    assert scenario.name == "mine", "a file without a name is called as it is"
    assert (scenario.seed, scenario.network.nodes, scenario.network.wire) == (9, 8, True)
    assert scenario.faults == (Loss(probability=0.1, end_s=5.0), Crash(fraction=0.5, start_s=2.0))


def test_a_delay_table_lies_beside_its_scenario(tmp_path: Path) -> None:
    (tmp_path / "near.tsv").write_text("from\ta\tb\na\t1\t2\nb\t3\t4\n")
    file = tmp_path / "mine.toml"
    file.write_text('[network]\ndelays = "near.tsv"\n')
    model = delay_model(load_scenario(file).network.delays)
    assert [model.region(node) for node in range(3)] == ["a", "b", "a"]
    assert model.one_way_ns(0, 1) == 2 * MS_NS


def test_a_delay_table_is_known_by_its_whole_path_and_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "near.tsv").write_text("from\ta\na\t1\n")
    (tmp_path / "mine.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    network = load_scenario(Path("mine.toml"), ["delays=near.tsv"]).network
    assert network.delays == str(tmp_path / "near.tsv")
    pin = f"delays_digest={network.delays_digest}"
    assert load_scenario(Path("mine.toml"), ["delays=near.tsv", pin]).network == network
    (tmp_path / "near.tsv").write_text("from\ta\na\t2\n")
    assert load_scenario(Path("mine.toml"), ["delays=near.tsv"]).network != network
    with pytest.raises(ConfigError, match=r"near\.tsv is another table by now"):
        load_scenario(Path("mine.toml"), ["delays=near.tsv", pin])


def test_delays_are_a_table_or_a_number() -> None:
    assert isinstance(delay_model("aws"), RegionDelay)
    assert delay_model(50) == ConstantDelay(50 * MS_NS)
    with pytest.raises(ConfigError, match=r"network\.delays = 'mars'.*aws"):
        delay_model("mars")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[network]\nnodes = 0", r"network\.nodes = 0: expected `int` >= 1"),
        ("[network]\nnodes = 'many'", r"network\.nodes = 'many': expected `int`, got `str`"),
        ("[network]\nnodez = 3", r"network\.nodez: no such field: did you mean nodes\?"),
        (
            "[workload]\nqqq = 3",
            r"workload\.qqq: no such field: there are messages, messages_per_node",
        ),
        ("workloads = 3", r"workloads: no such field: did you mean workload\?"),
        ("network = 3", r"network = 3: expected `object`, got `int`"),
        ("[network]\ndegree = 2", r"network\.degree = 2: expected `int` >= 3"),
        ("[network]\ndelays = true", r"network\.delays = True: expected `float \| str`"),
        ("[workload]\ninterval_ms = nan", r"workload\.interval_ms = nan"),
        ("[workload]\ndrain_s = inf", r"workload\.drain_s = inf"),
        (
            "protocol = 'smoke'",
            r"protocol = 'smoke': no such protocol: there are streams, topics, search$",
        ),
        (
            "experiment = 'speed'",
            r"experiment = 'speed': of streams there are delivery, randomness",
        ),
        (
            "[options]\noverlays = 3",
            r"options = {'overlays': 3}: streams/delivery has none: remove",
        ),
        ("experiment = 'diameter'\n[options]\noverlays = 0", r"options\.overlays = 0: expected"),
        ("experiment = 'diameter'\n[options]\noverlay = 1", r"options\.overlay: .* mean overlays"),
        ("seed = -1", r"seed = -1: expected `int` >= 0"),
        ("faults = 3", r"faults = 3: write \[\[faults\]\] tables"),
        ("[[faults]]\nkind = 'loss'\nprobability = 2", r"faults\.0: probability = 2: expected"),
        ("[[faults]]\nkind = 'gremlins'", r"faults\.0: kind = 'gremlins': .*there are bandwidth, "),
        (
            "[[faults]]\nkind = 'jitter'\nmean_ms = 1\n[[faults]]\nkind = 'crash'\nfraktion = 1",
            r"faults\.1: fraktion: no such field: did you mean fraction\?",
        ),
        *(
            (
                f"[[faults]]\nrole = 'nodes'\nkind = {fault}",
                r"faults\.0\.role = 'nodes': no node has this role: did you mean node\?",
            )
            for fault in (
                "'churn'\nper_minute = 1",
                "'clock_drift'\nppm = 1",
                "'crash'\nfraction = 1",
                "'partition'\nfraction = 0.5\nend_s = 9",
                "'service_time'\nper_message_ms = 1",
            )
        ),
        (
            "protocol = 'topics'\nexperiment = 'reddit'\n"
            "[[faults]]\nkind = 'crash'\nfraction = 1\nrole = 'tracker'",
            r"faults\.0\.role = 'tracker': no node has this role: there are node",
        ),
        *(
            (
                f"[[faults]]\nkind = 'crash'\nfraction = 1\nrole = '{role}'{when}",
                rf"faults\.0\.start_s = 0: no {role} runs yet, .* from 0\.63 s on all of them run",
            )
            for role in ("node", "tracker")
            for when in ("", "\nstart_s = 0")
        ),
        (
            "[[faults]]\nkind = 'jitter'\nmean_ms = 1\nstart_s = 50.53",
            r"faults\.0\.start_s = 50\.53: the run is over at 50\.53 s: let it begin earlier",
        ),
        (
            "[[faults]]\nkind = 'partition'\nend_s = 9\nregions = ['eu-west-1', 'eu-wset-2']",
            r"faults\.0\.regions = .*'aws' has no region 'eu-wset-2': did you mean eu-west-2\?",
        ),
        (
            "[network]\ndelays = 5\n[[faults]]\nkind = 'partition'\nend_s = 9\nregions = ['a']",
            r"faults\.0\.regions = .* has no region 'a': there are everywhere",
        ),
        (
            "[workload]\nmessages = 3\nmessages_per_node = 2",
            r"workload\.messages = 3 and workload\.messages_per_node = 2: leave one of them out",
        ),
        (
            "[network]\ndelays_digest = 'ab'",
            r"network\.delays_digest = 'ab': network\.delays = 'aws' comes from no file",
        ),
        ("[[faults]]\nkind = 'loss'\nprobability = 1\nstart_s = inf", r"faults\.0\.start_s = inf"),
        ("on = 'mars'", r"on = 'mars': invalid enum value 'mars'"),
        (
            "on = 'sockets'\nexperiment = 'diameter'",
            "on = 'sockets': streams/diameter runs on the simulator only",
        ),
        (
            "on = 'sockets'\n[network]\nliars = 0.5\n[[faults]]\nkind = 'loss'\nprobability = 1",
            r"network\.liars = 0\.5, faults = 1 tables: streams/delivery over sockets takes no "
            "notice of that: leave it out, or write on = 'simulator'$",
        ),
        (
            "experiment = 'diameter'\nprediction = true\n[workload]\nmessages = 3",
            r"workload\.messages = 3, prediction = True: streams/diameter takes no notice of that: "
            "leave it out$",
        ),
        (
            "protocol = 'topics'\nexperiment = 'reddit'\n[network]\ndegree = 5",
            r"network\.degree = 5: topics/reddit takes no notice of that",
        ),
        (
            "protocol = 'search'\nexperiment = 'match'\n[[faults]]\nkind = 'loss'\nprobability = 1",
            "faults = 1 tables: search/match takes no notice of that",
        ),
    ],
)
def test_an_error_names_file_field_and_value(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=rf"^test\.toml: {complaint}") as caught:
        parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"nodes = = 3", b"\xff\xfe"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "broken.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"broken\.toml: no scenario can be read"):
        load_scenario(file)


def test_any_field_can_be_overridden(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[[faults]]\nkind = 'loss'\nprobability = 0.1\n")
    scenario = load_scenario(
        file,
        [
            "network.nodes=256",
            "network.delays=aws",  # a bare word is a string
            'about = "spaces and = signs"',
            "workload.settle_s=1.5",
            "degree=5",  # only networks have one
            "faults.0.probability=0.2",
        ],
    )
    assert scenario.network.nodes == 256
    assert scenario.network.delays == "aws"
    assert scenario.about == "spaces and = signs"
    assert scenario.workload.settle_s == 1.5
    assert scenario.network.degree == 5
    assert scenario.faults == (Loss(probability=0.2),)
    assert load_scenario(file, ["faults=[]"]).faults == ()


def test_one_count_of_messages_takes_the_place_of_the_other(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[network]\nnodes = 8\n[workload]\nmessages_per_node = 2\n")
    assert load_scenario(file).messages == 16
    assert load_scenario(file, ["messages=10"]).messages == 10
    assert load_scenario(file, ["workload.messages = 10", "nodes=9"]).messages == 10
    assert load_scenario(file, ["messages_per_node=3"]).messages == 24
    with pytest.raises(ConfigError, match="leave one of them out"):
        load_scenario(file, ["messages=10", "messages_per_node=3"])
    file.write_text("[workload]\nmessages = 2\n")
    assert load_scenario(file, ["messages_per_node=1"]).messages == 64


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("network.nodes", "write KEY=VALUE"),
        ("=3", "write KEY=VALUE"),
        ("network.nodes=[1", "is no TOML value"),
        ("network.nodes=1\nseed=2", "one value, please"),
        ("faults.1.probability=0", "no entry 1: there are none"),
        ("seed.deep=3", "inside 4, which is a value"),
        ("network.nodez=3", "did you mean nodes"),
    ],
)
def test_an_override_that_cannot_be_is_refused(
    tmp_path: Path, override: str, complaint: str
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("seed = 4\nfaults = []\n[network]\nnodes = 3\n")
    with pytest.raises(UsageError, match=complaint):
        load_scenario(file, [override])


def test_a_run_lasts_until_all_is_sent_and_healed() -> None:
    quiet = parse(
        """
        [network]
        nodes = 101
        [workload]
        messages = 11
        """
    )
    assert quiet.publishing_s == (31.0, 32.0)
    assert quiet.healed_s == 0.0
    assert quiet.end_s == 42.0
    faulty = parse("[[faults]]\nkind = 'loss'\nprobability = 0.1\nend_s = 100")
    assert faulty.healed_s == 130.0
    assert faulty.end_s == 140.0


@pytest.mark.parametrize(
    ("fault", "healed_s"),
    [
        ("kind = 'jitter'\nmean_ms = 9", 0.0),
        ("kind = 'clock_drift'\noffset_ms = 500", 0.0),
        ("kind = 'clock_drift'\noffset_ms = 90000\nend_s = 10", 40.0),
        ("kind = 'clock_step'\nstep_s = -3600\nend_s = 10", 40.0),
        ("kind = 'clock_step'\nstep_s = 5", 0.0),
        ("kind = 'crash'\nfraction = 1\nstart_s = 10\ndetect_s = 5", 45.0),
        ("kind = 'crash'\nfraction = 1\nstart_s = 10\nend_s = 20", 50.0),
        ("kind = 'partition'\nfraction = 0.5\nend_s = 20", 50.0),
        ("kind = 'loss'\nprobability = 0.1", math.inf),
    ],
)
def test_what_loses_data_heals_or_not(fault: str, healed_s: float) -> None:
    scenario = parse(f"[[faults]]\n{fault}")
    assert scenario.healed_s == healed_s
    assert math.isfinite(scenario.end_s)
