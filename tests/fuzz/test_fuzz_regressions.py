"""The fuzz targets without Atheris: the seed corpus, inputs that once broke something, and a fixed stretch of mutations."""

from pathlib import Path
from random import Random

import pytest

from tests.fuzz.mutate import mutate
from tests.fuzz.oracles import reading, same
from tests.fuzz.targets import TARGETS, Target, target

REGRESSIONS = Path(__file__).parent / "regressions"
MUTATIONS = 150  # of each target: a second or two
EVERY = 4  # seed: the vectors are tried whole elsewhere


@pytest.fixture(params=TARGETS)
def chosen(request: pytest.FixtureRequest) -> Target:
    return target(request.param)


def test_every_seed_passes(chosen: Target) -> None:
    seeds = list(chosen.seeds())
    assert len(seeds) > 10
    for seed in seeds[::EVERY] if len(seeds) > 100 else seeds:
        chosen.check(seed)


def test_a_fixed_series_of_mutations_passes(chosen: Target) -> None:
    """The same inputs on every machine: a first look at a change, where there is no Atheris."""
    random, seeds = Random(chosen.name), list(chosen.seeds())
    for seed in range(MUTATIONS):
        raw = mutate(random.choice(seeds), seed, seeds)
        try:
            chosen.check(raw)
        except BaseException as error:
            error.add_note(f"target {chosen.name}, input {raw!r}")
            raise


@pytest.mark.parametrize("path", sorted(REGRESSIONS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_every_recorded_finding_passes(path: Path) -> None:
    name = path.parent.name
    assert name in TARGETS
    target(name).check(path.read_bytes())


def test_most_mutations_of_json_are_json() -> None:
    """Otherwise the fuzzer would look at the reader's door alone."""
    seeds = list(target("parse").seeds())
    decoded = [reading(mutate(seeds[0], seed, seeds)) is not None for seed in range(200)]
    assert sum(decoded) > 120


@pytest.mark.parametrize(
    ("left", "right"), [(1, 1.0), (1, True), ([0], [False]), ({"a": 1}, {"a": 1, "b": 1}), ("", None), ([], {})]
)
def test_the_oracle_distinguishes_values(left: object, right: object) -> None:
    assert not same(left, right)
    assert same(left, left)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{",
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": "\\ud800"}',
        b"\xff{}",
        b'{"a": ' + b"[" * 128 + b"]" * 128 + b"}",
    ],
)
def test_the_oracle_accepts_only_json(raw: bytes) -> None:
    assert reading(raw) is None
    assert reading(b'{"a": {"b": [1, "\\ud83d\\ude00"]}}') == {"a": {"b": [1, "😀"]}}
