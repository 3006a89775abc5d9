"""`aghctl key …`: keys on disk, and no secret in any output."""

import asyncio
import json
import os
import stat
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aghbus.daemon.config.loader import Host, load_settings
from aghbus.host.key_files import read_key
from aghbus.protocol.agh.trust.keys import handle_of, nickname_of
from aghbus.protocol.agh.trust.rotation import read_rotation
from aghbus.store.engine.database import Store
from aghbus.store.tables import identities
from tests.support.daemons import Home


def key(home: Home, *args: str) -> dict[str, Any]:
    answer: dict[str, Any] = home.ctl_json("--name", "ops", "key", *args)
    return answer


def no(home: Home, *args: str, code: int = 1) -> str:
    done = home.ctl("--name", "ops", "key", *args)
    assert done.returncode == code, done
    assert done.stdout == b""
    return done.stderr.decode()


def seed_texts(path: Path, passphrase: bytes | None = None) -> list[str]:
    """Every encoding in which the secret could be printed."""
    seed = read_key(path, passphrase).reveal_seed()
    return [seed.hex(), *(line for line in path.read_text().splitlines() if "-----" not in line)]


def test_generate_show_export(home: Home) -> None:
    made = key(home, "generate")
    path = Path(made["file"])
    assert path == home.root / "state/aghbus/instances/ops/identity.pem"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    secret = read_key(path)
    assert made["handle"] == handle_of("ops", secret.public)
    assert key(home, "show") == {**made, "former": []}
    exported = key(home, "export-public")
    assert (exported["key_id"], exported["pubkey"]) == (made["key_id"], made["pubkey"])
    human = home.ctl("--name", "ops", "key", "export-public").stdout.decode()
    assert human == exported["pem"]
    for command in ("show", "export-public", "rotate"):
        done = home.ctl("--name", "ops", "key", command)
        for text in seed_texts(home.root / "state/aghbus/instances/ops/identity.pem"):
            assert text not in (done.stdout + done.stderr).decode()


def test_a_key_is_never_overwritten(home: Home) -> None:
    made = key(home, "generate")
    assert "exists" in no(home, "generate")
    assert key(home, "show") == {**made, "former": []}


def test_without_a_key_the_error_names_the_command_that_creates_one(home: Home) -> None:
    for command in ("show", "export-public", "rotate"):
        assert "aghctl key generate" in no(home, command, code=4)
    assert not (home.root / "state").exists()


def test_a_given_file_and_passphrase_are_used(home: Home) -> None:
    passphrase = home.root / "p"
    passphrase.write_text("correct horse\n")
    file = str(home.root / "own.pem")
    assert "mode" in no(home, "generate", "--file", file, "--passphrase-file", str(passphrase))
    passphrase.chmod(0o600)
    made = key(home, "generate", "--file", file, "--passphrase-file", str(passphrase))
    assert "encrypted" in no(home, "show", "--file", file)
    assert key(home, "show", "--file", file, "--passphrase-file", str(passphrase)) == made
    done = home.ctl("key", "show", "--file", file, "--passphrase-file", str(passphrase))
    assert "correct horse" not in (done.stdout + done.stderr).decode()


def test_rotation_keeps_the_old_key_and_writes_a_valid_statement(home: Home) -> None:
    old = key(home, "generate")
    new = key(home, "rotate")
    assert new["file"] == old["file"]
    assert new["key_id"] != old["key_id"] == new["old_key_id"]
    assert key(home, "show")["key_id"] == new["key_id"]
    assert read_key(Path(new["old_file"])).key_id == old["key_id"]
    rotation = read_rotation(Path(new["statement_file"]).read_bytes())
    assert rotation is not None
    assert (rotation.nickname, rotation.old_key_id, rotation.new_key_id) == ("ops", old["key_id"], new["key_id"])
    again = key(home, "rotate")
    names = {path.name for path in Path(old["file"]).parent.iterdir()}
    assert len(names) == 5, names  # the key, two old ones with their statements, and no partial file
    assert read_key(Path(again["old_file"])).key_id == new["key_id"]


@pytest.mark.parametrize(
    ("files", "env"),
    [
        ({}, {}),
        ({"ops.toml": "front_desk"}, {}),
        ({"aghbus.toml": "common"}, {}),
        ({"aghbus.toml": "common", "ops.toml": "front-desk"}, {}),
        ({"ops.toml": "front-desk"}, {"AGHD_PEER_ID": "by-variable"}),
        ({"ops.toml": "front-desk", "other": "elsewhere"}, {"AGHD_CONFIG": "~/config/aghbus/other"}),
        ({"ops.toml": "front-desk"}, {"AGHD_CONFIG": "~/config/aghbus/none", "AGHD_PEER_ID": ""}),
    ],
)
def test_the_nickname_is_that_of_the_daemon(home: Home, files: dict[str, str], env: dict[str, str]) -> None:
    folder = home.root / "config/aghbus"
    folder.mkdir(parents=True)
    for name, peer_id in {"none": "", **files}.items():
        (folder / name).write_text(f"peer_id = {json.dumps(peer_id)}\n" if peer_id else "")
    home.env |= env
    host = Host(os.getuid(), str(home.root), "machine", str(home.root), 108)
    nickname = nickname_of(load_settings({"name": "ops"}, home.env, host).settings.peer_id)
    old = key(home, "generate")
    assert old["handle"].partition("@")[0] == nickname
    assert key(home, "show")["handle"] == old["handle"]
    new = key(home, "rotate")
    assert new["handle"].partition("@")[0] == nickname
    rotation = read_rotation(Path(new["statement_file"]).read_bytes())
    assert rotation is not None
    assert rotation.nickname == nickname


async def test_a_rotation_names_the_nickname_under_which_peers_know_the_old_key(home: Home) -> None:
    old = key(home, "generate")
    fingerprint = old["handle"].partition("@")[2]
    ours = ["ops", f"ops@{fingerprint}", f"door@{fingerprint}", f"other@{'0' * 32}"]
    store = await Store.open(Path(old["file"]).with_name("store.db"))
    for number, peer_id in enumerate(ours):
        await store.write(partial(identities.begin, self_id=peer_id, now_ms=number))
    await store.close()
    new = await asyncio.to_thread(key, home, "rotate")
    rotation = await asyncio.to_thread(lambda: read_rotation(Path(new["statement_file"]).read_bytes()))
    assert rotation is not None
    assert (rotation.nickname, new["handle"].partition("@")[0]) == ("door", "door")


def test_an_unreadable_configuration_is_an_error(home: Home) -> None:
    folder = home.root / "config/aghbus"
    folder.mkdir(parents=True)
    (folder / "ops.toml").write_text("peer_id = front\n")
    assert "not valid TOML" in no(home, "generate")
    assert not (home.root / "state").exists()


def test_a_rotation_statement_is_verified(home: Home, tmp_path: Path) -> None:
    old = key(home, "generate")
    new = key(home, "rotate")
    statement = Path(new["statement_file"])
    found = home.ctl_json("trust", "check-rotation", str(statement), "--old", old["key_id"])
    assert (found["nickname"], found["old_key_id"], found["new_key_id"]) == ("ops", old["key_id"], new["key_id"])
    assert new["key_id"] in home.ctl("trust", "check-rotation", stdin=statement.read_bytes()).stdout.decode()
    forged = {**json.loads(statement.read_bytes()), "nickname": "carol"}
    for args, stdin, says in (
        ((), json.dumps(forged).encode(), b"signature is invalid"),
        ((), b"[]", b"no rotation statement"),
        ((str(statement), "--old", new["key_id"]), b"", b"is signed by"),
    ):
        done = home.ctl("trust", "check-rotation", *args, stdin=stdin)
        assert (done.returncode, done.stdout, says in done.stderr) == (1, b"", True)


def test_an_interrupted_rotation_can_be_repeated(home: Home) -> None:
    old = key(home, "generate")
    path = Path(old["file"])
    fingerprint = old["handle"].partition("@")[2]
    path.with_name(f"identity-{fingerprint}.pem").hardlink_to(path)
    path.with_name(f"identity-{fingerprint}.rotation.json").write_text("half")
    new = key(home, "rotate")
    rotation = read_rotation(Path(new["statement_file"]).read_bytes())
    assert rotation is not None
    assert rotation.new_key_id == new["key_id"]
    assert read_key(Path(new["old_file"])).key_id == old["key_id"]


def test_an_encrypted_key_stays_encrypted(home: Home) -> None:
    passphrase = home.root / "p"
    passphrase.write_text("correct horse\n")
    passphrase.chmod(0o600)
    with_it = ("--passphrase-file", str(passphrase))
    key(home, "generate", *with_it)
    assert "encrypted" in no(home, "rotate")
    new = key(home, "rotate", *with_it)
    assert "ENCRYPTED" in Path(new["file"]).read_text()
    assert "ENCRYPTED" in Path(new["old_file"]).read_text()


def test_envelopes_are_checked_with_their_signatures(home: Home) -> None:
    vectors = Path(__file__).parent.parent / "vectors" / "trust_envelopes.jsonl"
    cases = [json.loads(line) for line in vectors.read_text("utf-8").split("\n") if line]
    one_line = [case for case in cases if "\n" not in case["raw"]]
    stdin = "\n".join(case["raw"] for case in one_line).encode()
    done: subprocess.CompletedProcess[bytes] = home.ctl(
        "envelope", "check", "-", "--now", str(cases[0]["now"]), stdin=stdin
    )
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    assert [verdict["accept"] for verdict in verdicts] == [case["state"] != "rejected" for case in one_line]
