"""`aghctl key generate`, `show`, `export-public` and `rotate` (offline): the daemon's private key, on this machine's disk."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

from aghbus.cli.app.errors import YES, AnswerIsNo, unusable
from aghbus.cli.app.text import counted, safe
from aghbus.cli.context import Context
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import TypeVar

    from aghbus.protocol.agh.trust.keys import SigningKey
    from aghbus.store.engine.sql import Connection

    T = TypeVar("T")

_FILE = Argument("--file", help="the key's file (default: identity.pem in the state folder of the instance)")
_PASSPHRASE = Argument("--passphrase-file", metavar="FILE", help="file (mode 0600) whose first line is the passphrase")
_RESTART = "restart the daemon; it finds the key there"


def run_generate(context: Context, values: dict[str, Any]) -> int:
    """Write a new key; never overwrite one."""
    from aghbus.host.files import as_owner, make_private_folder
    from aghbus.host.key_files import KeyFileError, generate_key, write_key

    path, name = _path(context, values), _name(context)
    try:
        passphrase = _passphrase(values)
        make_private_folder(path.parent)
        key = generate_key()
        with as_owner(path.parent):
            write_key(path, key, passphrase)
    except (KeyFileError, OSError) as error:
        raise _refusal(error) from None
    context.output.answer(_names(name, key, path), _human)
    context.output.note(_RESTART if values["file"] is None else f"name it: aghd run --trust-key-file {path}")
    return YES


def run_show(context: Context, values: dict[str, Any]) -> int:
    """Print the key's names; never the private key itself."""
    path, key = _read(context, values)
    found = _names(_name(context), key, path)
    if values["file"] is None:
        found["former"] = _former(context, str(found["handle"]))
    context.output.answer(found, _human)
    return YES


def _former(context: Context, handle: str) -> list[dict[str, Any]]:
    """Earlier peer ids of the instance that still have open works or unsent messages, from its store."""
    from aghbus.store.tables.identities import former

    return [
        {"peer_id": one.peer_id, "open_works": one.open_works, "unsent": one.unsent}
        for one in _from_store(context, lambda db: former(db, handle)) or []
        if one.peer_id.partition("@")[2] != handle.partition("@")[2]  # the current key, under any nickname
    ]


def _from_store(context: Context, read: Callable[[Connection], T]) -> T | None:
    """The result of `read` on the instance's store; None if there is no store that can be read."""
    from pathlib import Path

    from aghbus.store.engine.database import open_to_inspect
    from aghbus.store.engine.sql import DatabaseError
    from aghbus.store.errors import StoreError

    path = Path(context.places.store_path)
    if not path.exists():
        return None
    try:
        with contextlib.closing(open_to_inspect(path)) as db:
            return read(db)
    except (StoreError, DatabaseError) as error:  # the key can be shown without the store
        context.output.note(f"former identities are not known: {error}")
        return None


def run_export(context: Context, values: dict[str, Any]) -> int:
    """Print the public key as PEM; in JSON also in its wire format."""
    from aghbus.host.key_files import public_pem
    from aghbus.protocol.agh.trust.keys import encode_base64url

    _, key = _read(context, values)
    pem = public_pem(key)
    found = {"key_id": key.key_id, "pubkey": encode_base64url(key.public), "pem": pem}
    context.output.answer(found, lambda _: pem.rstrip("\n"))
    return YES


def run_rotate(context: Context, values: dict[str, Any]) -> int:
    """Replace the key by a new one; the old key and the rotation statement stay in the same folder.

    Safe against a crash at any point: the old key stays in place until the last step.
    """
    from aghbus.host.files import as_owner, sync_folder
    from aghbus.host.key_files import KeyFileError, generate_key, write_key, write_private
    from aghbus.protocol.agh.trust.keys import nickname_of
    from aghbus.protocol.agh.trust.rotation import rotation_statement

    path, old = _read(context, values)
    name = _used(context, old) or _name(context)
    new = generate_key()
    fresh = path.with_name(f"{path.stem}-{new.fingerprint}.new")
    kept = path.with_name(f"{path.stem}-{old.fingerprint}{path.suffix}")
    statement = path.with_name(f"{path.stem}-{old.fingerprint}.rotation.json")
    try:
        passphrase = _passphrase(values)
        with as_owner(path.parent):
            write_key(fresh, new, passphrase)
            statement.unlink(missing_ok=True)  # of an interrupted rotation: it names a key that was never used
            write_private(statement, rotation_statement(old, new.public, nickname_of(name), int(time.time())) + b"\n")
            if not kept.exists():
                kept.hardlink_to(path)
            fresh.replace(path)
            sync_folder(path.parent)
    except (KeyFileError, OSError) as error:
        fresh.unlink(missing_ok=True)
        raise _refusal(error) from None
    found = _names(name, new, path)
    found |= {"old_key_id": old.key_id, "old_file": str(kept), "statement_file": str(statement)}
    context.output.answer(found, _human)
    context.output.note(f"{_RESTART}, and other peers see a new peer: give them the statement to pin the new key")
    return YES


def _name(context: Context) -> str:
    """The peer id of the instance's daemon, by its configuration."""
    from aghbus.client.locate import configured_peer_id

    return configured_peer_id(context.places, context.env)


def _used(context: Context, key: SigningKey) -> str | None:
    """The nickname under which other peers know this key, by the store; None if it was not used yet."""
    from aghbus.store.tables.identities import newest_of_key

    handle = _from_store(context, lambda db: newest_of_key(db, key.fingerprint))
    return None if handle is None else handle.partition("@")[0]


def _path(context: Context, values: dict[str, Any]) -> Path:
    from pathlib import Path

    from aghbus.host.key_files import KEY_FILE

    if values["file"] is not None:
        return Path(os.path.abspath(values["file"]))  # noqa: PTH100 - resolve() would follow a symbolic link
    return Path(context.places.state_dir, KEY_FILE)


def _read(context: Context, values: dict[str, Any]) -> tuple[Path, SigningKey]:
    from aghbus.host.files import as_owner
    from aghbus.host.key_files import KeyFileError, read_key

    path = _path(context, values)
    try:
        passphrase = _passphrase(values)
        with as_owner(path.parent):
            return path, read_key(path, passphrase)
    except KeyFileError as error:
        raise unusable(error.path, str(error), error.hint, "key_file") from None


def _passphrase(values: dict[str, Any]) -> bytes | None:
    from pathlib import Path

    from aghbus.host.key_files import read_passphrase

    named = values["passphrase_file"]
    return None if named is None else read_passphrase(Path(named))


def _names(name: str, key: SigningKey, path: Path) -> dict[str, Any]:
    from aghbus.protocol.agh.trust.keys import encode_base64url, handle_of

    return {
        "handle": handle_of(name, key.public),
        "key_id": key.key_id,
        "pubkey": encode_base64url(key.public),
        "file": str(path),
    }


def _human(found: dict[str, Any]) -> str:
    lines = [f"{name.replace('_', ' '):<15} {safe(value)}" for name, value in found.items() if name != "former"]
    lines += [
        f"{'former':<15} {safe(one['peer_id'])}, {counted(one['open_works'], 'open work')}"
        for one in found.get("former", [])
    ]
    return "\n".join(lines)


def _refusal(error: Exception) -> AnswerIsNo:
    if isinstance(error, OSError):
        return AnswerIsNo(f"{error.filename}: {os.strerror(error.errno or 0)}", code="key_file")
    return AnswerIsNo(str(error), str(getattr(error, "hint", "")), code="key_file")


COMMANDS = {
    "key generate": Command(
        run_generate,
        description=(
            "Create an Ed25519 key in a file of mode 0600, encrypted if a passphrase is given. With a key the daemon is the\n"
            "verified peer nickname@fingerprint, and signs every message. Never overwrites a file. Needs no daemon."
        ),
        examples=[
            "aghctl --name ops key generate",
            "aghctl key generate --file ops.pem --passphrase-file ops.passphrase",
        ],
        arguments=[_FILE, _PASSPHRASE],
    ),
    "key show": Command(
        run_show,
        description=(
            "Show handle, key id and public key of our key; other peers allow, deny or pin the key id. The nickname in the\n"
            "handle is the configured peer_id of the instance, else its name. Earlier identities that still have\n"
            "open works are listed too. The private key is never printed. Needs no daemon."
        ),
        examples=["aghctl --name ops key show", "aghctl key show --file ops.pem -o json"],
        arguments=[_FILE, _PASSPHRASE],
    ),
    "key export-public": Command(
        run_export,
        description="Print our public key as PEM, or with -o json also in its wire format. Needs no daemon.",
        examples=["aghctl --name ops key export-public", "aghctl --name ops key export-public -o json"],
        arguments=[_FILE, _PASSPHRASE],
    ),
    "key rotate": Command(
        run_rotate,
        description=(
            "Replace our key. The old key stays in the same folder under its fingerprint, and so does a statement, signed\n"
            "by the old key, that names the new one (docs/trust.md). After the restart the daemon is another peer; open works are\n"
            "finished under the old identity, for which the daemon needs the file of the old key in its place."
        ),
        examples=["aghctl --name ops key rotate", "aghctl --name ops key rotate --passphrase-file ops.passphrase"],
        arguments=[_FILE, _PASSPHRASE],
    ),
}
