"""Settings, URLs and contexts become NATS options; every problem is found, no secret is shown."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.daemon.config.settings import NatsSettings
from aghbus.daemon.nats.context import SELECTED
from aghbus.daemon.nats.options import NatsOptions, NatsOptionsError, resolve_nats_options

SECRET = "s3cr3t-value"
CREDS = (
    "-----BEGIN NATS USER JWT-----\neyJ0\n------END NATS USER JWT------\n"
    "-----BEGIN USER NKEY SEED-----\nSUAX\n------END USER NKEY SEED------\n"
)


def resolved(**settings: object) -> NatsOptions:
    options = resolve_nats_options(NatsSettings(**settings), {})  # type: ignore[arg-type] # each test names fields of the type
    assert options is not None
    return options


def problems(env: dict[str, str] | None = None, **settings: object) -> dict[str, str]:
    """Key to rule of all that is wrong; the text of the error holds no secret."""
    with pytest.raises(NatsOptionsError) as error:
        resolve_nats_options(NatsSettings(**settings), env or {})  # type: ignore[arg-type] # as above
    assert SECRET not in str(error.value)
    return {problem.key: problem.rule for problem in error.value.problems}


def private(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def context(folder: Path, name: str, mode: int = 0o600, **fields: object) -> dict[str, str]:
    """Writes a context file; returns the environment in which it is found."""
    path = folder / "nats" / "context" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    private(path, json.dumps(fields), mode)
    return {"XDG_CONFIG_HOME": str(folder)}


def test_nothing_named_means_the_embedded_broker() -> None:
    assert resolve_nats_options(NatsSettings(), {}) is None


@pytest.mark.parametrize(
    ("given_url", "full"),
    [
        ("nats://h:1", "nats://h:1"),
        ("h", "nats://h:4222"),
        ("h:5000", "nats://h:5000"),
        ("tls://H.example/", "tls://h.example:4222"),
        ("nats://[::1]:4333", "nats://[::1]:4333"),
        ("127.0.0.1", "nats://127.0.0.1:4222"),
    ],
)
def test_urls_in_full(given_url: str, full: str) -> None:
    assert resolved(servers=(given_url,)).servers == (full,)


def test_several_servers_also_in_one_text() -> None:
    assert resolved(servers=("a, b:1", "a", "c")).servers == ("nats://a:4222", "nats://b:1", "nats://c:4222")


@pytest.mark.parametrize(
    "url",
    [
        "http://h",
        "ws://h",
        "nats://",
        "nats://h:0",
        "nats://h:99999",
        "nats://h:x",
        "nats://h/path",
        "nats://h?a=b",
        "nats://[::1",
        f"nats://u:{SECRET}@h/path",
        f"nats://u:{SECRET}@h:x",
        "nats://h\r\nPUB",
        "nats://a b",
        "nats://h\x1b[0m",
    ],
)
def test_invalid_urls_are_refused(url: str) -> None:
    assert "nats.servers" in problems(servers=(url,))


@given(st.text(max_size=40))
def test_no_text_breaks_the_url_parser(text: str) -> None:
    try:
        options = resolve_nats_options(NatsSettings(servers=(text,)), {})
    except NatsOptionsError as error:
        assert error.problems
    else:
        assert options is None or all(url.startswith(("nats://", "tls://")) for url in options.servers)


def test_credentials_are_taken_out_of_a_url() -> None:
    options = resolved(servers=(f"nats://us%65r:{SECRET}%40@h", f"nats://user:{SECRET}%40@i"))
    assert options.servers == ("nats://h:4222", "nats://i:4222")
    assert (options.user, options.password) == ("user", SECRET + "@")
    token = resolved(servers=(f"nats://{SECRET}@h",))
    assert (token.token, token.user, token.servers) == (SECRET, None, ("nats://h:4222",))


def test_secrets_are_never_shown() -> None:
    options = resolved(servers=("h",), user="u", password=SECRET)
    assert SECRET not in repr(options) + str(options) + json.dumps(options.redacted())
    assert options.redacted() == {"servers": ["nats://h:4222"], "user": "u", "password": "***"}
    assert "token='***'" in repr(resolved(servers=("h",), token=SECRET))


def test_secrets_from_files(tmp_path: Path) -> None:
    file = private(tmp_path / "token", f"{SECRET}\n")
    assert resolved(servers=("h",), token_file=file).token == SECRET
    options = resolved(servers=("h",), user="u", password_file=file)
    assert (options.password, options.warnings) == (SECRET, ())


def test_a_secret_that_others_can_read_is_a_warning(tmp_path: Path) -> None:
    paths = {
        "token_file": private(tmp_path / "token", SECRET, 0o640),
        "creds": private(tmp_path / "creds", CREDS, 0o604),
        "nkey": private(tmp_path / "nkey", "SUAX", 0o644),
    }
    for key, path in paths.items():
        options = resolved(servers=("h",), **{key: path})
        assert len(options.warnings) == 1
        assert key in options.warnings[0]
        assert f"chmod 600 {path}" in options.warnings[0]
        assert SECRET not in options.warnings[0]


def test_unusable_files_are_refused(tmp_path: Path) -> None:
    for text, rule in ((None, "No such file"), ("", "empty"), ("x" * 70_000, "larger"), ("two\nlines", "one line")):
        path = tmp_path / "token"
        if text is not None:
            private(path, text)
        assert rule in problems(servers=("h",), token_file=str(path))["nats.token_file"]
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "not text" in problems(servers=("h",), token_file=str(tmp_path / "binary"))["nats.token_file"]
    assert "Is a directory" in problems(servers=("h",), token_file=str(tmp_path))["nats.token_file"]
    wrong = private(tmp_path / "wrong", SECRET)
    assert "BEGIN NATS USER JWT" in problems(servers=("h",), creds=wrong)["nats.creds"]
    assert "SU" in problems(servers=("h",), nkey=wrong)["nats.nkey"]
    assert "BEGIN CERTIFICATE" in problems(servers=("h",), tls_ca=wrong)["nats.tls_ca"]


def test_all_problems_at_once(tmp_path: Path) -> None:
    found = problems(
        servers=("http://h",), user="u", tls_cert=str(tmp_path / "none"), tls_ca=str(tmp_path / "none"), context=None
    )
    assert set(found) == {"nats.servers", "nats.password", "nats.tls_key", "nats.tls_cert", "nats.tls_ca"}


def test_one_way_to_authenticate(tmp_path: Path) -> None:
    creds = private(tmp_path / "creds", CREDS)
    assert "more than one way" in problems(servers=("h",), creds=creds, token=SECRET)["nats"]
    assert "more than one way" in problems(servers=(f"nats://{SECRET}@h",), user="u", password="p")["nats"]
    assert "different" in problems(servers=(f"nats://{SECRET}@h", "nats://other@h"))["nats.servers"]
    assert "set too" in problems(servers=("h",), token=SECRET, token_file=creds)["nats.token_file"]
    assert "without it" in problems(servers=("h",), password=SECRET)["nats.user"]
    assert "without a server" in problems(token=SECRET)["nats.token"]


def test_tls_files(tmp_path: Path) -> None:
    certificate = private(tmp_path / "c.pem", "-----BEGIN CERTIFICATE-----\n", 0o644)
    key = private(tmp_path / "k.pem", "-----BEGIN EC PRIVATE KEY-----\n", 0o644)
    options = resolved(servers=("h",), tls_ca=certificate, tls_cert=certificate, tls_key=key)
    assert options.tls
    assert (options.tls_ca, options.tls_cert, options.tls_key) == (certificate, certificate, key)
    assert len(options.warnings) == 1  # the key; certificates are public
    assert resolved(servers=("tls://h",)).tls
    assert not resolved(servers=("h",)).tls


@pytest.mark.parametrize(
    ("servers", "loopback"),
    [
        (("127.0.0.1", "localhost", "nats://[::1]:1"), True),
        (("127.9.9.9",), True),
        (("127.0.0.1", "h"), False),
        (("10.0.0.1",), False),
    ],
)
def test_loopback(servers: tuple[str, ...], loopback: bool) -> None:
    assert resolved(servers=servers).loopback is loopback


def test_a_context_by_name(tmp_path: Path) -> None:
    creds = private(tmp_path / "creds", CREDS)
    certificate = private(tmp_path / "c.pem", "-----BEGIN CERTIFICATE-----\n")
    env = context(
        tmp_path, "prod", description="Production", url="nats://a,tls://b:1", creds=creds, ca=certificate, user_jwt=""
    )
    options = resolve_nats_options(NatsSettings(context="prod"), env)
    assert options is not None
    assert options.servers == ("nats://a:4222", "tls://b:1")
    assert (options.creds, options.tls_ca) == (creds, certificate)


def test_the_selected_context_only_when_asked_for(tmp_path: Path) -> None:
    env = context(tmp_path, "lab", url="nats://lab", token=SECRET)
    (tmp_path / "nats" / "context.txt").write_text("lab\n")
    assert resolve_nats_options(NatsSettings(), env) is None
    options = resolve_nats_options(NatsSettings(context=SELECTED), env)
    assert options is not None
    assert (options.servers, options.token) == (("nats://lab:4222",), SECRET)


def test_the_context_is_found_under_home_too(tmp_path: Path) -> None:
    context(tmp_path / ".config", "lab", url="nats://lab")
    options = resolve_nats_options(NatsSettings(context="lab"), {"HOME": str(tmp_path)})
    assert options is not None
    assert options.servers == ("nats://lab:4222",)


def test_settings_win_over_the_context(tmp_path: Path) -> None:
    env = context(tmp_path, "lab", url="nats://lab", user="u", password="p")
    options = resolve_nats_options(NatsSettings(context="lab", servers=("other",), token=SECRET), env)
    assert options is not None
    assert (options.servers, options.token, options.user) == (("nats://other:4222",), SECRET, None)


def test_unusable_contexts_are_refused(tmp_path: Path) -> None:
    env = context(tmp_path, "jwt", url="nats://h", user_jwt="eyJ")
    assert "'user_jwt' is not supported" in problems(env, context="jwt")["nats.context"]
    context(tmp_path, "proxy", url="nats://h", socks_proxy="socks5://p")
    assert "'socks_proxy' is not supported" in problems(env, context="proxy")["nats.context"]
    context(tmp_path, "types", url=["nats://h"])
    assert "'url' must be a string" in problems(env, context="types")["nats.context"]
    context(tmp_path, "empty")
    assert "names no url" in problems(env, context="empty")["nats.context"]
    assert "No such file" in problems(env, context="absent")["nats.context"]
    assert "No such file" in problems(env, context=SELECTED)["nats.context"]
    for name in ("../lab", "a/b", ".."):
        assert "not a context's name" in problems(env, context=name)["nats.context"]
    for text, rule in (("{", "not JSON"), ("[]", "not a JSON object")):
        (tmp_path / "nats" / "context" / "bad.json").write_text(text)
        assert rule in problems(env, context="bad")["nats.context"]


def test_a_context_with_a_secret_that_others_can_read_is_a_warning(tmp_path: Path) -> None:
    env = context(tmp_path, "open", 0o644, url="nats://h", token=SECRET)
    options = resolve_nats_options(NatsSettings(context="open"), env)
    assert options is not None
    assert len(options.warnings) == 1
    assert SECRET not in options.warnings[0]
    env = context(tmp_path, "plain", 0o644, url="nats://h")
    plain = resolve_nats_options(NatsSettings(context="plain"), env)
    assert plain is not None
    assert not plain.warnings


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize(("mode", "warnings"), [(0o440, 0), (0o640, 0), (0o444, 1)])
def test_a_secret_of_another_owner_may_be_read_by_its_group(tmp_path: Path, mode: int, warnings: int) -> None:
    path = private(tmp_path / "token", SECRET, mode)
    os.chown(path, 1, -1)
    assert len(resolved(servers=("h",), token_file=path).warnings) == warnings
