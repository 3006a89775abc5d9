"""Our key: the configured file, a systemd credential, or the file in the state folder; and the keys of former identities,
which `aghctl key rotate` keeps next to it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from aghbus.daemon.config.settings import Settings
from aghbus.host.locations import Locations

if TYPE_CHECKING:
    from aghbus.protocol.agh.trust.proof import EnvelopeSigner

KEY_CREDENTIAL: Final = "aghbus.key"
PASSPHRASE_CREDENTIAL: Final = "aghbus.passphrase"  # noqa: S105 - the name of a credential, not one
CREDENTIALS: Final = "CREDENTIALS_DIRECTORY"
"""The variable with the folder of a unit's systemd credentials (systemd.exec, LoadCredential=)."""


def load_signer(settings: Settings, locations: Locations, env: Mapping[str, str]) -> "EnvelopeSigner | None":
    """The signer of our key; None without a key.

    Raises KeyFileError for a key file that exists or is configured and cannot be used: without its key the daemon would be
    another peer.
    """
    from aghbus.host.key_files import read_key
    from aghbus.protocol.agh.trust.proof import EnvelopeSigner  # cryptography, which `aghd config show` does not need

    place = _place(settings, locations, env)
    if place is None:
        return None
    path, guarded = place
    return EnvelopeSigner(read_key(path, _passphrase(settings, env), guarded=guarded), settings.peer_id)


class FormerKey(msgspec.Struct, frozen=True, kw_only=True):
    """The key of a former peer id: its signer (None for an id without a key) and its file, or the error that makes it unusable."""

    peer_id: str
    signer: "EnvelopeSigner | None" = None
    path: Path | None = None
    error: str | None = None


def load_former(peer_id: str, settings: Settings, locations: Locations, env: Mapping[str, str]) -> FormerKey:
    """The key for acting as the former id `peer_id`.

    An id without a key is used again only if it is the configured peer id: any other may be another daemon's by now.
    """
    from aghbus.host.key_files import KeyFileError

    nickname, at, fingerprint = peer_id.partition("@")
    if not at:
        if peer_id == settings.peer_id:
            return FormerKey(peer_id=peer_id)
        return FormerKey(peer_id=peer_id, error=f"start the daemon with --peer-id {peer_id} and they are ours again")
    try:
        return _kept(peer_id, nickname, fingerprint, settings, locations, env)
    except KeyFileError as error:
        return FormerKey(peer_id=peer_id, error=f"{error} ({error.hint})")


def retire_key_file(path: Path) -> Path:
    """Rename the key file of a retired identity, so that it is not found again; returns the new path.

    Raises KeyFileError.
    """
    from aghbus.host.files import sync_folder
    from aghbus.host.key_files import KeyFileError

    aside = path.with_name(f"{path.stem}.retired{path.suffix}")
    try:
        path.rename(aside)
        sync_folder(path.parent)
    except OSError as error:
        cause = os.strerror(error.errno or 0)
        raise KeyFileError(path, f"it cannot be renamed: {cause}", "it is not needed any more: remove it") from None
    return aside


def _kept(
    peer_id: str, nickname: str, fingerprint: str, settings: Settings, locations: Locations, env: Mapping[str, str]
) -> FormerKey:
    """Find the key of a former handle: beside the one in use, in the state folder, or still in its default place."""
    from aghbus.host.key_files import KEY_FILE, KeyFileError, read_key
    from aghbus.protocol.agh.trust.proof import EnvelopeSigner

    usual = Path(locations.state_dir, KEY_FILE)
    place = _place(settings, locations, env)
    in_use = place[0] if place else usual
    beside = [path.with_name(f"{path.stem}-{fingerprint}{path.suffix}") for path in (in_use, usual)]
    for path in (*beside, in_use, usual):
        if not path.exists():
            continue
        key = read_key(path, _passphrase(settings, env), guarded=_is_credential(str(path), env))
        if key.fingerprint == fingerprint:
            kept = path if path in beside else None  # a file that may be in use is not renamed
            return FormerKey(peer_id=peer_id, signer=EnvelopeSigner(key, nickname), path=kept)
    raise KeyFileError(beside[0], "the key of that identity is not there", "put it back, and restart the daemon")


def _place(settings: Settings, locations: Locations, env: Mapping[str, str]) -> tuple[Path, bool] | None:
    """The file of our key, and whether its folder protects it; None without one."""
    from aghbus.host.key_files import KEY_FILE

    credential = _credential(env, KEY_CREDENTIAL)
    usual = Path(locations.state_dir, KEY_FILE)
    if settings.trust.key_file is not None:
        return Path(settings.trust.key_file), _is_credential(settings.trust.key_file, env)
    if credential is not None:
        return credential, True
    return (usual, False) if usual.is_symlink() or usual.exists() else None


def _passphrase(settings: Settings, env: Mapping[str, str]) -> bytes | None:
    from aghbus.host.key_files import read_passphrase

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
    """Whether a file is in the folder of systemd credentials, which protects it whatever its mode."""
    folder = env.get(CREDENTIALS, "")
    return folder.startswith("/") and Path(path).parent == Path(folder)
