"""The capability catalog: its three forms, its rules, and a change on disk that reaches the daemon."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.state.catalog import MAX_FILE_BYTES, Catalog, CatalogError, CatalogSource, load_catalog, record_of
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.own_card import OwnCard
from aghbus.daemon.tasks.catalog_watcher import CatalogWatcher
from tests.support.publishing import Hand

VECTORS = Path(__file__).resolve().parents[1] / "vectors" / "capability_digests.jsonl"
CASES = [json.loads(line) for line in VECTORS.read_text().splitlines()]
ONE = {"id": "test.run", "summary": "Run the tests.", "outcome": "A report."}
TWO = {"id": "code.patch", "summary": "Patch the code.", "outcome": "A patch."}


def write_json(path: Path, document: Any) -> str:
    path.write_text(json.dumps(document))
    return str(path)


def problem_keys(path: Path | str) -> list[str]:
    with pytest.raises(CatalogError) as caught:
        load_catalog(str(path))
    assert all(problem.origin.startswith("file ") for problem in caught.value.problems)
    return [problem.key for problem in caught.value.problems]


def test_without_a_catalog_there_are_only_claims() -> None:
    assert load_catalog(None, ["a", "b", "a"]) == Catalog(records=(), claims=("a", "b"), path=None)


@pytest.mark.parametrize(
    "document", [[ONE, TWO], {"capabilities": [ONE, TWO]}, {"capabilities": {"test.run": ONE, "code.patch": TWO}}]
)
def test_json_forms_give_the_same_records_in_their_order(tmp_path: Path, document: Any) -> None:
    catalog = load_catalog(write_json(tmp_path / "c.json", document), ["extra", "test.run"])
    assert [record.id for record in catalog.records] == ["test.run", "code.patch"]
    assert catalog.claims == ("extra",)
    assert catalog.records[0].summary == "Run the tests."
    assert catalog.records[0].document == {**ONE, "digest": catalog.records[0].digest}


@pytest.mark.parametrize(
    "text",
    [
        '[[capabilities]]\nid = "test.run"\nsummary = "Run the tests."\noutcome = "A report."\n',
        '[capabilities."test.run"]\nsummary = "Run the tests."\noutcome = "A report."\n',
    ],
)
def test_toml_forms(tmp_path: Path, text: str) -> None:
    (tmp_path / "capabilities.toml").write_text(text)
    (record,) = load_catalog(str(tmp_path / "capabilities.toml")).records
    from_json = load_catalog(write_json(tmp_path / "c.json", [ONE])).records
    assert (record,) == from_json


def test_a_folder_has_one_record_in_each_file_in_order_of_names(tmp_path: Path) -> None:
    folder = tmp_path / "capabilities"
    folder.mkdir()
    write_json(folder / "test.run.json", ONE)
    (folder / "code.patch.toml").write_text('summary = "Patch the code."\noutcome = "A patch."\n')
    (folder / ".editor.swp").write_text("not ours")
    catalog = load_catalog(str(folder))
    assert [record.id for record in catalog.records] == ["code.patch", "test.run"]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_digests_are_those_of_the_reference(tmp_path: Path, case: dict[str, Any]) -> None:
    entry = case["capability"]
    path = tmp_path / "c.json"
    try:
        catalog = load_catalog(write_json(path, [entry]))
    except CatalogError as error:
        # Stricter than the wire: what we author has no control characters in its summary and no padded id.
        assert {problem.key for problem in error.problems} <= {"capabilities[0].summary", "capabilities[0].id"}
        return
    assert catalog.records[0].digest == case["digest"]
    write_json(path, [{**catalog.records[0].document, "digest": case["digest"]}])
    assert load_catalog(str(path)).records == catalog.records


def test_most_of_the_vectors_are_catalog_records(tmp_path: Path) -> None:
    good = 0
    for case in CASES:
        with suppress(CatalogError):
            load_catalog(write_json(tmp_path / "c.json", [case["capability"]]))
            good += 1
    assert good > len(CASES) // 3


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"id": ""}, "id"),
        ({"id": " padded"}, "id"),
        ({"id": "a\nb"}, "id"),
        ({"id": 3}, "id"),
        ({"summary": None}, "summary"),
        ({"summary": "two\nlines"}, "summary"),
        ({"summary": "  "}, "summary"),
        ({"outcome": ""}, "outcome"),
        ({"sumary": "x"}, "sumary"),
        ({"examples": "one"}, "examples"),
        ({"examples": [1]}, "examples"),
        ({"requirements": ["a", " a "]}, "requirements"),
        ({"requirements": [""]}, "requirements"),
        ({"version": 1.2}, "version"),
        ({"digest": "sha256:" + "0" * 64}, "digest"),
    ],
)
def test_a_bad_field_is_named(tmp_path: Path, change: dict[str, Any], key: str) -> None:
    assert problem_keys(write_json(tmp_path / "c.json", [{**ONE, **change}])) == [f"capabilities[0].{key}"]


def test_valid_digest_and_public_example_workspace_are_accepted(tmp_path: Path) -> None:
    digest = load_catalog(write_json(tmp_path / "c.json", [ONE])).records[0].digest
    catalog = load_catalog(write_json(tmp_path / "c.json", [{**ONE, "digest": digest, "workspace_id": "ws_alpha"}]))
    assert catalog.records[0].digest == digest


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    keys = problem_keys(
        write_json(tmp_path / "c.json", {"capabilities": [{**ONE, "summary": 1}, 7, TWO, TWO], "other": 1})
    )
    assert set(keys) == {"other", "capabilities[0].summary", "capabilities[1]", "capabilities[3].id"}


def test_the_name_of_the_place_must_be_the_id(tmp_path: Path) -> None:
    folder = tmp_path / "capabilities"
    folder.mkdir()
    write_json(folder / "other.json", ONE)
    assert problem_keys(folder) == ["capability.id"]
    assert problem_keys(write_json(tmp_path / "c.json", {"capabilities": {"other": ONE}})) == ["capabilities.other.id"]


def test_one_id_in_two_files_is_a_problem(tmp_path: Path) -> None:
    folder = tmp_path / "capabilities"
    folder.mkdir()
    write_json(folder / "test.run.json", ONE)
    (folder / "test.run.toml").write_text('summary = "x"\noutcome = "y"\n')
    assert problem_keys(folder) == ["capability.id"]


def test_a_link_out_of_the_folder_is_refused_and_one_inside_it_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "capabilities"
    (folder / "..data").mkdir(parents=True)  # as a container platform mounts a folder of configuration
    write_json(folder / "..data" / "test.run.json", ONE)
    (folder / "test.run.json").symlink_to("..data/test.run.json")
    assert [record.id for record in load_catalog(str(folder)).records] == ["test.run"]
    write_json(tmp_path / "code.patch.json", TWO)
    (folder / "code.patch.json").symlink_to("../code.patch.json")
    (folder / "gone.json").symlink_to("nowhere.json")
    (folder / "loop.json").symlink_to("loop.json")
    assert problem_keys(folder) == ["catalog"] * 3


def test_a_pipe_a_foreign_file_and_a_huge_one_are_problems(tmp_path: Path) -> None:
    folder = tmp_path / "capabilities"
    folder.mkdir()
    os.mkfifo(folder / "pipe.json")
    (folder / "notes.yaml").write_text("id: x")
    (folder / "huge.json").write_text(" " * (MAX_FILE_BYTES + 1))
    (folder / "folder.json").mkdir()
    assert problem_keys(folder) == ["catalog"] * 4


@pytest.mark.parametrize("content", [b"", b"{", b'"text"', b"\xff", b"[" * 100_000, b'[{"id": "a", "id": "b"}]', b"3"])
def test_an_invalid_catalog_file_is_a_problem(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c.json").write_bytes(content)
    assert len(problem_keys(tmp_path / "c.json")) == 1


def test_a_missing_file_and_another_kind_of_file_are_problems(tmp_path: Path) -> None:
    assert problem_keys(tmp_path / "absent.toml") == ["catalog"]
    assert problem_keys(tmp_path / "absent.yaml") == ["catalog"]


def test_of_the_default_places_at_most_one_may_exist(tmp_path: Path) -> None:
    places = tuple(str(tmp_path / name) for name in ("capabilities.toml", "capabilities.json", "capabilities"))
    source = CatalogSource(None, places, ("bare",))
    assert source.load() == Catalog(claims=("bare",))
    write_json(tmp_path / "capabilities.json", [ONE])
    assert source.load().path == places[1]
    (tmp_path / "capabilities").mkdir()
    with pytest.raises(CatalogError, match="only one"):
        source.load()


class Watched:
    """A running watcher with what it called back, in order."""

    def __init__(self, source: CatalogSource) -> None:
        self.calls: asyncio.Queue[Catalog | CatalogError] = asyncio.Queue()
        self.watcher = CatalogWatcher(
            source, self.calls.put_nowait, self.calls.put_nowait, interval=0.02, settle_time=0.01
        )

    async def next(self) -> Catalog | CatalogError:
        """The next call back."""
        async with asyncio.timeout(10):
            return await self.calls.get()


@asynccontextmanager
async def watching(source: CatalogSource) -> AsyncIterator[Watched]:
    watched = Watched(source)
    watched.watcher.load()
    task = asyncio.create_task(watched.watcher.run())
    try:
        yield watched
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def ids(catalog: Catalog | CatalogError) -> list[str]:
    assert isinstance(catalog, Catalog)
    return [record.id for record in catalog.records]


async def test_a_changed_file_is_noticed(tmp_path: Path) -> None:
    path = write_json(tmp_path / "c.json", [ONE])
    async with watching(CatalogSource(path)) as watched:
        assert ids(watched.watcher.catalog) == ["test.run"]
        write_json(tmp_path / "c.json", [ONE, TWO])
        assert ids(await watched.next()) == ["test.run", "code.patch"]
        assert ids(watched.watcher.catalog) == ["test.run", "code.patch"]


async def test_a_bad_change_is_reported_once_and_leaves_the_catalog_in_force(tmp_path: Path) -> None:
    path = write_json(tmp_path / "c.json", [ONE])
    async with watching(CatalogSource(path)) as watched:
        (tmp_path / "c.json").write_text("[{")
        assert isinstance(await watched.next(), CatalogError)
        assert ids(watched.watcher.catalog) == ["test.run"]
        write_json(tmp_path / "c.json", [TWO])
        assert ids(await watched.next()) == ["code.patch"]  # nothing else came between


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda folder: write_json(folder / "code.patch.json", TWO), ["code.patch", "test.run"]),
        (lambda folder: (folder / "test.run.json").unlink(), []),
    ],
)
async def test_files_that_come_to_and_go_from_a_folder_are_noticed(
    tmp_path: Path, change: Callable[[Path], object], left: list[str]
) -> None:
    folder = tmp_path / "capabilities"
    folder.mkdir()
    write_json(folder / "test.run.json", ONE)
    async with watching(CatalogSource(None, (str(folder),))) as watched:
        change(folder)
        assert ids(await watched.next()) == left


async def test_a_default_catalog_that_appears_later_is_noticed(tmp_path: Path) -> None:
    async with watching(CatalogSource(None, (str(tmp_path / "c.json"),), ("test.run",))) as watched:
        assert watched.watcher.catalog.claims == ("test.run",)
        write_json(tmp_path / "c.json", [ONE])
        catalog = await watched.next()
        assert ids(catalog) == ["test.run"]
        assert not watched.watcher.catalog.claims


async def test_a_poke_reads_again_immediately_and_repeats_an_unsolved_problem(tmp_path: Path) -> None:
    path = write_json(tmp_path / "c.json", [ONE])
    async with watching(CatalogSource(path)) as watched:
        (tmp_path / "c.json").unlink()
        assert isinstance(await watched.next(), CatalogError)
        watched.watcher.poke()
        assert isinstance(await watched.next(), CatalogError)


async def test_following_another_source_takes_effect_immediately(tmp_path: Path) -> None:
    path = write_json(tmp_path / "c.json", [ONE])
    async with watching(CatalogSource(path)) as watched:
        watched.watcher.follow(CatalogSource(path, claims=("more",)))
        catalog = await watched.next()
        assert isinstance(catalog, Catalog)
        assert catalog.claims == ("more",)


def test_a_bad_catalog_refuses_the_start(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text("[")
    watcher = CatalogWatcher(CatalogSource(str(tmp_path / "c.json")), print, print)
    with pytest.raises(CatalogError):
        watcher.load()


def test_what_a_process_announces_expires_and_goes_behind_the_operators_records() -> None:
    clock = Hand()
    settings = Settings()
    card = OwnCard(Identity(settings), LiveSettings(settings), clock)
    card.catalog = Catalog(records=(record_of(ONE),), claims=("code.patch", "other"))
    assert card.card().capabilities == ("test.run", "code.patch", "other")
    assert card.announce(record_of(TWO), 60)
    assert not card.announce(record_of(TWO), 60)  # nothing new to greet with
    assert card.card().capabilities == ("test.run", "code.patch", "other")
    assert [one.summary for one in card.catalog.records] == ["Run the tests.", "Patch the code."]
    with pytest.raises(CatalogError, match="of the operator"):
        card.announce(record_of({**ONE, "outcome": "Nothing."}), 60)
    card.catalog = Catalog(claims=("other",))
    assert card.card().capabilities == ("code.patch", "other")
    clock.now += 61
    assert card.card().capabilities == ("other",)
    assert card.announced_for("code.patch") is None
