"""Compares the tables, indexes, views and triggers of a store with those that this program makes."""

import re
import sqlite3
from contextlib import closing
from typing import Final

from aghbus.store.engine.log import segments
from aghbus.store.engine.schema import shipped
from aghbus.store.engine.sql import Connection

_OBJECTS: Final = "SELECT type || ' ' || name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
_LITESTREAM: Final = frozenset({"table _litestream_lock", "table _litestream_seq"})
_COMMENTS_AND_SPACES: Final = re.compile(r"(--[^\n]*|\s)+")


def schema_problems(db: Connection) -> list[str]:
    """What `db` has besides the objects of its schema, has in another form, or lacks, as sentences. Only reads.

    The indexes of the log may be absent (the next start makes them), tables of litestream may be there (docs/backup.md).
    """
    (version,) = db.execute("PRAGMA user_version").fetchone()
    with closing(sqlite3.connect(":memory:")) as own:
        for script in shipped()[:version]:
            own.executescript(script)
        required = _objects(own)
        segments.prepare(own, segments.SEGMENT, len)
        known = _objects(own)
    found = _objects(db)
    problems = [f"{name} is foreign" for name in found if name not in known and name not in _LITESTREAM]
    problems += [f"{name} was changed" for name in found if name in known and found[name] != known[name]]
    return problems + [f"{name} is missing" for name in required if name not in found]


def _objects(db: Connection) -> dict[str, str]:
    return {name: _COMMENTS_AND_SPACES.sub(" ", sql or "") for name, sql in db.execute(_OBJECTS)}
