"""Keys of former identities: where they are found, when an id without a key is used again, and how key files are retired."""

import json
from pathlib import Path

import pytest

from aghbus.daemon.config.settings import Settings
from aghbus.daemon.config.trust_settings import TrustSettings
from aghbus.daemon.nats.link import InboundMessage
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.keys import FormerKey, load_former, load_signer, retire_key_file
from aghbus.host.key_files import KEY_FILE, KeyFileError, write_key
from aghbus.host.locations import Locations
from aghbus.protocol.agh.identifiers import direct_id, subject_for
from aghbus.protocol.agh.trust.keys import SigningKey, handle_of
from tests.support.receiving import OTHER, bench

OLD, NEW = SigningKey(bytes(range(32))), SigningKey(bytes(range(1, 33)))
HANDLE = handle_of("earlier", OLD.public)
KEPT = f"identity-{OLD.fingerprint}.pem"


def settings(key_file: Path | None = None, passphrase_file: Path | None = None) -> Settings:
    files = [None if path is None else str(path) for path in (key_file, passphrase_file)]
    return Settings(name="ops", peer_id="ops", trust=TrustSettings(key_file=files[0], passphrase_file=files[1]))


def test_the_kept_key_in_the_state_folder_signs_under_the_old_nickname(places: Locations) -> None:
    write_key(Path(places.state_dir, KEY_FILE), NEW)
    write_key(Path(places.state_dir, KEPT), OLD)
    found = load_former(HANDLE, settings(), places, {})
    assert found.error is None
    assert found.signer is not None
    assert (found.signer.handle, found.path) == (HANDLE, Path(places.state_dir, KEPT))


def test_the_kept_key_beside_a_named_one_with_the_same_passphrase(places: Locations, tmp_path: Path) -> None:
    passphrase = tmp_path / "passphrase"
    passphrase.write_text("correct horse\n")
    passphrase.chmod(0o600)
    write_key(tmp_path / "ops.pem", NEW, b"correct horse")
    kept = tmp_path / f"ops-{OLD.fingerprint}.pem"
    write_key(kept, OLD, b"correct horse")
    found = load_former(HANDLE, settings(tmp_path / "ops.pem", passphrase), places, {})
    assert (found.error, found.path) == (None, kept)
    locked = load_former(HANDLE, settings(tmp_path / "ops.pem"), places, {})
    assert locked.signer is None
    assert "encrypted" in str(locked.error)


def test_a_credential_beside_the_one_in_use(places: Locations, tmp_path: Path) -> None:
    write_key(tmp_path / "aghbus.key", NEW)
    write_key(tmp_path / f"aghbus-{OLD.fingerprint}.key", OLD)
    (tmp_path / f"aghbus-{OLD.fingerprint}.key").chmod(0o440)  # systemd's; its folder keeps others out
    found = load_former(HANDLE, settings(), places, {"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert found.signer is not None


def test_another_key_in_the_place_of_the_kept_one_is_refused(places: Locations) -> None:
    write_key(Path(places.state_dir, KEPT), NEW)
    found = load_former(HANDLE, settings(), places, {})
    assert found.signer is None
    assert KEPT in str(found.error)


def test_a_renamed_daemon_keeps_its_key_file(places: Locations, tmp_path: Path) -> None:
    named = settings(tmp_path / "ops.pem")
    write_key(tmp_path / "ops.pem", OLD)
    found = load_former(HANDLE, named, places, {})
    assert found.signer is not None
    assert found.path is None  # it is the key in use: nothing may rename it
    now = load_signer(named, places, {})
    assert now is not None
    ours = Identity(named, now, [found])
    assert ours.former == (HANDLE,)
    assert ours.former_on_other_subjects == ()  # one key, one route token, one subject
    assert ours.shares_subject(HANDLE)


def test_former_id_without_a_key_must_be_the_configured_peer_id(places: Locations) -> None:
    assert load_former("ops", settings(), places, {}) == FormerKey(peer_id="ops")
    refused = load_former("somebody", settings(), places, {})
    assert "--peer-id somebody" in str(refused.error)


def test_a_retired_key_file_is_not_found_again_and_not_lost(places: Locations) -> None:
    kept = Path(places.state_dir, KEPT)
    write_key(kept, OLD)
    before = kept.read_bytes()
    aside = retire_key_file(kept)
    assert aside.read_bytes() == before
    assert load_former(HANDLE, settings(), places, {}).error is not None
    with pytest.raises(KeyFileError, match="cannot be renamed"):
        retire_key_file(kept)


async def test_refused_message_in_a_former_ids_room_keeps_content(tmp_path: Path) -> None:
    async with bench(tmp_path, signer=OTHER, former=[FormerKey(peer_id="earlier")]) as b:
        for to in (OTHER.handle, "earlier", "another"):
            room = direct_id("ws_local", "default", "peer", to)
            wrong = b.say(
                "peer", to=to, surface="direct", thread_id=None, direct_id=room, id=f"in_{to}", body={"text": 5}
            )
            for raw in (json.dumps(wrong).encode(), b"not JSON"):
                b.intake.offer(InboundMessage(subject_for("ws_local", "default", to), raw, "", None))
        await b.commit()
        kept = await b.store.reader.execute_fetchall("SELECT message_id, raw FROM quarantine ORDER BY rowid")
        assert [(message, bool(raw)) for message, raw in kept] == [
            *((f"in_{OTHER.handle}", True), ("", True)),
            *(("in_earlier", True), ("", True)),
            *(("in_another", False), ("", False)),
        ]
        rows = await b.store.reader.execute_fetchall("SELECT events FROM ledger WHERE events IS NOT NULL")
        assert sum(entries.count(b'"reject"') for (entries,) in rows) == 4
