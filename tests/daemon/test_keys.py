"""Key files: who may read them, what is in them, where they are looked for, and that the secret stays where it is."""

import os
import stat
import subprocess
from pathlib import Path
from typing import Final

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from aghbus.daemon.config.settings import Settings
from aghbus.daemon.config.trust_settings import TrustSettings, policy_of
from aghbus.daemon.state.keys import load_signer
from aghbus.host.key_files import (
    MAX_KEY_BYTES,
    KeyFileError,
    generate_key,
    public_pem,
    read_key,
    read_passphrase,
    write_key,
)
from aghbus.host.locations import Locations
from aghbus.protocol.agh.trust.keys import SigningKey
from aghbus.protocol.agh.trust.policy import ChannelRule, identity_of
from tests.support.tools import require_tool

KEY: Final = SigningKey(bytes(range(32)))
# RFC 8410 section 7: the private key of the example, and the public one that goes with it.
RFC_8410: Final = """-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC
-----END PRIVATE KEY-----
"""
RFC_8410_PUBLIC: Final = """-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=
-----END PUBLIC KEY-----
"""


def private(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    path.chmod(0o600)
    return path


class TestFiles:
    def test_a_written_key_is_read_back_and_private(self, tmp_path: Path) -> None:
        path = tmp_path / "one.pem"
        key = generate_key()
        before = os.umask(0)  # the most careless one
        try:
            write_key(path, key)
        finally:
            os.umask(before)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert read_key(path).public == key.public

    def test_the_format_is_standard_pem(self, tmp_path: Path) -> None:
        key = read_key(private(tmp_path / "rfc.pem", RFC_8410.encode()))
        assert public_pem(key) == RFC_8410_PUBLIC

    def test_two_keys_differ(self) -> None:
        assert generate_key().public != generate_key().public

    def test_a_file_is_never_overwritten(self, tmp_path: Path) -> None:
        path = private(tmp_path / "one.pem", b"precious")
        with pytest.raises(KeyFileError, match="exists"):
            write_key(path, KEY)
        assert path.read_bytes() == b"precious"
        link = tmp_path / "link.pem"
        link.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(KeyFileError):
            write_key(link, KEY)
        assert not (tmp_path / "elsewhere").exists()

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o622, 0o610])
    def test_a_file_that_others_may_touch_is_refused(self, tmp_path: Path, mode: int) -> None:
        path = tmp_path / "one.pem"
        write_key(path, KEY)
        path.chmod(mode)
        with pytest.raises(KeyFileError, match=f"mode {mode:04o}") as refused:
            read_key(path)
        assert refused.value.hint == f"chmod 600 {path}"
        path.chmod(0o400)
        assert read_key(path).public == KEY.public

    @pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
    def test_a_file_of_another_user_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "one.pem"
        write_key(path, KEY)
        os.chown(path, 12345, -1)
        with pytest.raises(KeyFileError, match="belongs to user 12345"):
            read_key(path)

    def test_a_path_that_is_not_a_regular_file_is_refused(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe", 0o600)
        for path in (tmp_path / "pipe", tmp_path, tmp_path / "missing"):
            with pytest.raises(KeyFileError):
                read_key(path)

    def test_content_that_is_not_an_ed25519_key_is_refused_and_not_repeated(self, tmp_path: Path) -> None:
        other = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        for content in (
            b"",
            b"TOPSECRET",
            RFC_8410_PUBLIC.encode(),
            RFC_8410.encode()[:60],
            other,
            b"x" * MAX_KEY_BYTES * 2,
        ):
            path = private(tmp_path / "one.pem", content)
            with pytest.raises(KeyFileError) as refused:
                read_key(path)
            assert "TOPSECRET" not in str(refused.value)
            assert refused.value.hint


class TestPassphrases:
    def test_a_wrong_passphrase_and_a_malformed_key_are_different_errors(self, tmp_path: Path) -> None:
        path = tmp_path / "one.pem"
        write_key(path, KEY, b"correct horse")
        with pytest.raises(KeyFileError, match="the passphrase is wrong") as refused:
            read_key(path, b"battery staple")
        assert "--passphrase-file" in refused.value.hint and "generate" not in refused.value.hint
        with pytest.raises(KeyFileError, match="not a PEM private key") as refused:
            read_key(private(tmp_path / "none.pem", b"nothing"), b"correct horse")
        assert "generate" in refused.value.hint

    def test_a_passphrase_file_is_not_called_a_key_file(self, tmp_path: Path) -> None:
        (tmp_path / "open").write_text("correct horse")
        (tmp_path / "open").chmod(0o644)
        for path in (tmp_path / "missing", tmp_path, tmp_path / "open", private(tmp_path / "empty", b"")):
            with pytest.raises(KeyFileError, match=f"^passphrase file {path}: ") as refused:
                read_passphrase(path)
            assert "generate" not in refused.value.hint

    def test_an_encrypted_key_needs_its_passphrase(self, tmp_path: Path) -> None:
        path = tmp_path / "one.pem"
        write_key(path, KEY, b"correct horse")
        assert b"ENCRYPTED" in path.read_bytes()
        assert read_key(path, b"correct horse").public == KEY.public
        with pytest.raises(KeyFileError, match="encrypted") as missing:
            read_key(path)
        assert "passphrase" in missing.value.hint
        with pytest.raises(KeyFileError, match="wrong"):
            read_key(path, b"wrong horse")

    def test_openssl_reads_it(self, tmp_path: Path) -> None:
        path = tmp_path / "one.pem"
        write_key(path, KEY, b"correct horse")
        command = [require_tool("openssl"), "pkey", "-in", str(path), "-passin", "pass:correct horse", "-pubout"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        assert done.stdout == public_pem(KEY)

    def test_a_passphrase_for_an_unencrypted_key_is_ignored(self, tmp_path: Path) -> None:
        path = tmp_path / "one.pem"
        write_key(path, KEY)
        assert read_key(path, b"not needed").public == KEY.public

    def test_only_the_first_line_is_the_passphrase(self, tmp_path: Path) -> None:
        path = private(tmp_path / "p", b"correct horse\r\nmore\n")
        assert read_passphrase(path) == b"correct horse"
        for content in (b"", b"\n", b"x" * 1024):
            with pytest.raises(KeyFileError, match="first line"):
                read_passphrase(private(path, content))
        path.chmod(0o644)
        with pytest.raises(KeyFileError, match="mode 0644"):
            read_passphrase(path)


def settings(peer_id: str = "ops", key_file: str | None = None) -> Settings:
    return Settings(name="ops", peer_id=peer_id, trust=TrustSettings(key_file=key_file))


class TestWhereItIs:
    def test_without_a_key_the_daemon_is_unverified(self, places: Locations) -> None:
        assert load_signer(settings(), places, {}) is None

    def test_the_default_key_file_is_found(self, places: Locations) -> None:
        write_key(Path(places.state_dir, "identity.pem"), KEY)
        signer = load_signer(settings("ops.1"), places, {})
        assert signer is not None
        assert signer.handle == "ops-1@56475aa75463474c0285df5dbf2bcab7"

    def test_the_setting_precedes_a_credential_and_that_precedes_the_default(
        self, places: Locations, tmp_path: Path
    ) -> None:
        credentials = tmp_path / "credentials"
        credentials.mkdir()
        keys = [generate_key() for _ in range(3)]
        write_key(tmp_path / "named.pem", keys[0])
        write_key(credentials / "aghbus.key", keys[1])
        write_key(Path(places.state_dir, "identity.pem"), keys[2])
        env = {"CREDENTIALS_DIRECTORY": str(credentials)}
        found = [
            load_signer(settings(key_file=str(tmp_path / "named.pem")), places, env),
            load_signer(settings(), places, env),
            load_signer(settings(), places, {}),
        ]
        assert [signer and signer.key_id for signer in found] == [key.key_id for key in keys]

    def test_a_credential_may_have_the_mode_that_systemd_gives_it(self, places: Locations, tmp_path: Path) -> None:
        credentials = tmp_path / "credentials"
        credentials.mkdir()
        write_key(credentials / "aghbus.key", KEY, b"pass")
        private(credentials / "aghbus.passphrase", b"pass\n")
        for file in credentials.iterdir():
            file.chmod(0o440)  # an ACL for the service's user shows as the group's bits
        env = {"CREDENTIALS_DIRECTORY": str(credentials)}
        signer = load_signer(settings(), places, env)
        assert signer is not None
        assert signer.key_id == KEY.key_id
        named = settings(key_file=str(credentials / "aghbus.key"))
        assert load_signer(named, places, env) is not None
        with pytest.raises(KeyFileError, match="mode 0440"):
            load_signer(named, places, {})

    def test_an_unusable_key_is_an_error_not_an_unverified_peer(self, places: Locations, tmp_path: Path) -> None:
        with pytest.raises(KeyFileError, match="No such file"):
            load_signer(settings(key_file=str(tmp_path / "missing")), places, {})
        Path(places.state_dir, "identity.pem").symlink_to(tmp_path / "missing")
        with pytest.raises(KeyFileError, match="No such file"):
            load_signer(settings(), places, {})


def test_the_policy_from_settings() -> None:
    other = "sha256:" + "0" * 64
    policy = policy_of(
        TrustSettings(
            mode="require",
            allow=(KEY.key_id,),
            deny=(other,),
            pins=(f"ops={KEY.key_id}",),
            may_open_work=("builders=*@*", f"builders={KEY.key_id}"),
            may_talk=("builders=ops", "default=*"),
        )
    )
    assert policy.mode == "require"
    assert policy.allow == frozenset({KEY.key_id})
    assert policy.deny == frozenset({identity_of(other)})
    assert policy.pins == {"ops": KEY.key_id}
    assert policy.channels == {
        "builders": ChannelRule(work=frozenset({"*@*", KEY.key_id}), talk=frozenset({"ops"})),
        "default": ChannelRule(talk=frozenset({"*"})),
    }
    assert policy_of(TrustSettings()).channels == {}
