"""A kept store of each released schema, and of its backup: they open, are brought up to date, and pass every check."""

import hashlib
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from aghbus.daemon.check_store import StoreReport, check_store
from aghbus.daemon.commands.restore_store import restore
from aghbus.store.audit.reader import open_audit_log
from aghbus.store.engine.database import Store
from aghbus.store.engine.schema import MIGRATIONS, shipped
from aghbus.store.errors import StoreUnopenable
from tests.support.keep_store import KEPT
from tests.support.makers import rows

VERSIONS: Final = sorted(path.name for path in KEPT.iterdir() if path.is_dir())
NOW_MS: Final = 1_800_000_000_000
NEXT: Final = """
CREATE TABLE works_of_next (id INTEGER PRIMARY KEY, state TEXT NOT NULL, added TEXT NOT NULL DEFAULT 'x') STRICT;
INSERT INTO works_of_next (id, state) SELECT id, state FROM works;
ALTER TABLE outbox ADD COLUMN planted INTEGER;
DROP TABLE IF EXISTS log_flows;
"""
"""What a next version might do: one new table with content, one new column, and an index of the log in another form."""


@pytest.fixture
def following(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The migrations of a next version, which has one more."""
    folder = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, folder)
    (folder / f"{len(shipped()) + 1:04}_next.sql").write_text(NEXT)
    monkeypatch.setattr("aghbus.store.engine.schema.MIGRATIONS", folder)
    return folder


@pytest.fixture(params=VERSIONS)
def kept(request: pytest.FixtureRequest) -> Path:
    return KEPT / str(request.param)


@pytest.fixture
def store(kept: Path, tmp_path: Path) -> Path:
    """A kept store in the place of a daemon's."""
    shutil.copytree(kept, tmp_path / "state")
    return tmp_path / "state" / "store.db"


def states(report: StoreReport) -> dict[str, str]:
    return {one.check: one.state for one in report.checks}


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


def test_released_migrations_never_change() -> None:
    """A change of the schema is a new file; CONTRIBUTING.md says how it gets its line here."""
    lines = (line.split() for line in (KEPT / "released.sha256").read_text().splitlines())
    listed = {name: digest for digest, name in lines}
    there = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in MIGRATIONS.glob("*.sql")}
    assert {name: there.get(name) for name in listed} == listed
    assert sorted(listed) == sorted(there)[: len(listed)]
    assert sorted(str(number) for number in range(1, len(listed) + 1)) == VERSIONS


async def test_a_kept_store_opens_and_is_sound(store: Path) -> None:
    opened = await Store.open(store)
    assert opened.problems == ()
    assert await rows(opened, "SELECT state FROM inbox ORDER BY state") == [("acked",), ("dead",), ("leased",)]
    await opened.close()
    assert set(states(check_store(store, quick=False)).values()) == {"ok"}
    assert version(store) == len(shipped())


@pytest.mark.usefixtures("following")
async def test_the_next_version_brings_it_up_to_date(store: Path) -> None:
    before = check_store(store, quick=False)
    assert (before.ok, states(before)["store schema"]) == (True, "warn")
    with pytest.raises(StoreUnopenable, match="has schema") as refused, open_audit_log(store):
        pass
    assert "the next start of its daemon updates it" in refused.value.hint
    opened = await Store.open(store)
    assert opened.problems == ()
    await opened.close()
    assert set(states(check_store(store, quick=False)).values()) == {"ok"}
    with closing(sqlite3.connect(store)) as db:
        assert db.execute("SELECT count(*), min(added) FROM works_of_next").fetchone() == (12, "x")


@pytest.mark.usefixtures("following")
def test_the_next_version_restores_a_backup_of_it(kept: Path, tmp_path: Path) -> None:
    store = tmp_path / "state" / "store.db"
    report = restore(kept, store, tmp_path / "state", now_ms=NOW_MS, replace=False)
    assert report.keys == ["identity.pem"]
    assert set(states(check_store(store, quick=False)).values()) == {"ok"}
    assert version(store) == len(shipped())
    assert version(kept / "store.db") < len(shipped())


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        ("CREATE TABLE half (x INTEGER) STRICT; INSERT INTO nowhere VALUES (1);", "nowhere"),
        ("DELETE FROM log", "migration [0-9]+ leaves rows of"),
    ],
    ids=["a statement fails", "rows are left without theirs"],
)
async def test_a_migration_that_fails_leaves_the_store_as_it_was(
    store: Path, following: Path, wrong: str, cause: str
) -> None:
    (following / f"{len(shipped()):04}_next.sql").write_text(wrong)
    with pytest.raises(StoreUnopenable, match=cause):
        await Store.open(store)
    assert version(store) == len(shipped()) - 1
    report = check_store(store, quick=False)
    assert states(report)["store schema"] == "warn"
    assert report.ok
