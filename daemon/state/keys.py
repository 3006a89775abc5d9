"""Which keys are ours: the file that the settings name, a systemd credential, or the one in our state folder; and those of
former identities, which `aghctl key rotate` leaves beside it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from aghbus.daemon.config.settings import Settings
from aghbus.store.host.locations import Locations

if TYPE_CHECKING:
    from aghbus.protocol.trust.proof import EnvelopeSigner

KEY_CREDENTIAL: Final = "aghbus.key"
PASSPHRASE_CREDENTIAL: Final = "aghbus.passphrase"  # noqa: S105 - the name of a credential, not one
CREDENTIALS: Final = "CREDENTIALS_DIRECTORY"
"""The variable by which systemd says where it has put a unit's credentials (systemd.exec, LoadCredential=)."""


def load_signer(settings: Settings, locations: Locations, env: Mapping[str, str]) -> "EnvelopeSigner | None":
    """The signer of our key; None when there is no key, which makes us a plain peer.

    A key that is named, or that lies in its usual place, and cannot be used is an error: raises KeyFileError. A daemon that
    would go on without its key would be another peer.
    """
    from aghbus.protocol.trust.proof import EnvelopeSigner  # cryptography, which `aghd config show` does not need
    from aghbus.store.host.key_files import read_key

    place = _place(settings, locations, env)
    if place is None:
        return None
    path, guarded = place
    return EnvelopeSigner(read_key(path, _passphrase(settings, env), guarded=guarded), settings.peer_id)


class FormerKey(msgspec.Struct, frozen=True, kw_only=True):
    """What we have of a former peer id: its signer (None for a plain one) and the file of its key, or why we cannot use it."""

    peer_id: str
    signer: "EnvelopeSigner | None" = None
    path: Path | None = None
    error: str | None = None


def load_former(peer_id: str, settings: Settings, locations: Locations, env: Mapping[str, str]) -> FormerKey:
    """What is needed to go on as `peer_id`, which we were before.

    A plain id is taken up again only when it is the one that we would have without a key: another may be another daemon's now.
    """
    from aghbus.store.host.key_files import KeyFileError

    nickname, at, fingerprint = peer_id.partition("@")
    if not at:
        if peer_id == settings.peer_id:
            return FormerKey(peer_id=peer_id)
        return FormerKey(peer_id=peer_id, error=f"start the daemon with --peer-id {peer_id} and they are ours again")
    try:
        return _kept(peer_id, nickname, fingerprint, settings, locations, env)
    except KeyFileError as error:
        return FormerKey(peer_id=peer_id, error=f"{error} ({error.hint})")


def put_aside(path: Path) -> Path:
    """The key of an identity that has retired is given a name under which it is not looked for; the new path.

    Raises KeyFileError.
    """
    from aghbus.store.host.files import sync_folder
    from aghbus.store.host.key_files import KeyFileError

    aside = path.with_name(f"{path.stem}.retired{path.suffix}")
    try:
        path.rename(aside)
        sync_folder(path.parent)
    except OSError as error:
        cause = os.strerror(error.errno or 0)
        raise KeyFileError(path, f"it cannot be renamed: {cause}", "nothing needs it any more: take it away") from None
    return aside


def _kept(
    peer_id: str, nickname: str, fingerprint: str, settings: Settings, locations: Locations, env: Mapping[str, str]
) -> FormerKey:
    """The key of a former handle: beside the one in use, in the state folder, or still in its usual place."""
    from aghbus.protocol.trust.proof import EnvelopeSigner
    from aghbus.store.host.key_files import KEY_FILE, KeyFileError, read_key

    usual = Path(locations.state_dir, KEY_FILE)
    place = _place(settings, locations, env)
    in_use = place[0] if place else usual
    beside = [path.with_name(f"{path.stem}-{fingerprint}{path.suffix}") for path in (in_use, usual)]
    for path in (*beside, in_use, usual):
        if not path.exists():
            continue
        key = read_key(path, _passphrase(settings, env), guarded=_is_credential(str(path), env))
        if key.fingerprint == fingerprint:
            kept = path if path in beside else None  # what may be in use is not put aside
            return FormerKey(peer_id=peer_id, signer=EnvelopeSigner(key, nickname), path=kept)
    raise KeyFileError(beside[0], "the key of that identity is not there", "put it back, and restart the daemon")


def _place(settings: Settings, locations: Locations, env: Mapping[str, str]) -> tuple[Path, bool] | None:
    """The file of our key, and whether its folder guards it; None when we have none."""
    from aghbus.store.host.key_files import KEY_FILE

    credential = _credential(env, KEY_CREDENTIAL)
    usual = Path(locations.state_dir, KEY_FILE)
    if settings.trust.key_file is not None:
        return Path(settings.trust.key_file), _is_credential(settings.trust.key_file, env)
    if credential is not None:
        return credential, True
    return (usual, False) if usual.is_symlink() or usual.exists() else None


def _passphrase(settings: Settings, env: Mapping[str, str]) -> bytes | None:
    from aghbus.store.host.key_files import read_passphrase

    secret = _passphrase_file(settings, env)
    return None if secret is None else read_passphrase(secret, guarded=_is_credential(str(secret), env))


def _passphrase_file(settings: Settings, env: Mapping[str, str]) -> Path | None:
    named = settings.trust.passphrase_file
    return Path(named) if named is not None else _credential(env, PASSPHRASE_CREDENTIAL)


def _credential(env: Mapping[str, str], name: str) -> Path | None:
    folder = env.get(CREDENTIALS, "")
    path = Path(folder, name)
    return path if folder.startswith("/") and path.exists() else None


def _is_credential(path: str, env: Mapping[str, str]) -> bool:
    """Whether a file lies in the folder of credentials, which systemd keeps closed whatever the modes inside."""
    folder = env.get(CREDENTIALS, "")
    return folder.startswith("/") and Path(path).parent == Path(folder)
