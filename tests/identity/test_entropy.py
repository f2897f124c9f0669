"""The contract of the entropy port, for every implementation, and what the seeded one adds."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.identity import Entropy, SeededEntropy, SystemEntropy


@pytest.fixture(params=["system", "seeded"])
def entropy(request: pytest.FixtureRequest) -> Entropy:
    return SystemEntropy() if request.param == "system" else SeededEntropy(7)


@pytest.mark.parametrize("size", [0, 1, 12, 32, 1000])
def test_a_token_has_the_size_asked_for(entropy: Entropy, size: int) -> None:
    assert len(entropy.token(size)) == size


def test_tokens_do_not_repeat(entropy: Entropy) -> None:
    assert len({entropy.token(12) for _ in range(1000)}) == 1000


def test_a_negative_size_is_an_error(entropy: Entropy) -> None:
    with pytest.raises(ValueError, match="negative"):
        entropy.token(-1)


@given(st.one_of(st.integers(), st.text(), st.binary()))
def test_one_seed_gives_one_sequence(seed: int | str | bytes) -> None:
    first, second = SeededEntropy(seed), SeededEntropy(seed)
    assert [first.token(16) for _ in range(3)] == [second.token(16) for _ in range(3)]


def test_seeds_of_different_kinds_differ() -> None:
    seeds: list[int | str | bytes] = [1, "1", b"1", -1, 2]
    assert len({SeededEntropy(seed).token(16) for seed in seeds}) == len(seeds)


def test_a_fork_does_not_depend_on_what_its_parent_handed_out() -> None:
    fresh, used = SeededEntropy(1), SeededEntropy(1)
    used.token(100)
    assert fresh.fork("node 3").token(16) == used.fork("node 3").token(16)
    assert fresh.fork("node 3").token(16) != fresh.fork("node 4").token(16)
    assert fresh.fork("node 3").token(16) != fresh.token(16)


def test_the_sequence_of_a_seed_is_fixed_forever() -> None:
    # Recorded runs are replayed from their seed: these bytes may never change.
    assert SeededEntropy(42).token(16).hex() == "95f95cd9e29d3ce9ca32006e1e4d27d6"


def test_the_sequence_does_not_depend_on_the_hash_seed() -> None:
    program = "from shoal.identity import SeededEntropy; print(SeededEntropy('x').token(8).hex())"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={
                **os.environ,
                "PYTHONHASHSEED": hash_seed,
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert outputs == {SeededEntropy("x").token(8).hex() + "\n"}
