"""Layers of configuration, rules of values, problems all at once, what is shown and what is never shown."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aghbus.daemon.config.display import keys_table, problems_text, show_json, show_text
from aghbus.daemon.config.layers import ConfigError, Problem
from aghbus.daemon.config.loader import Host, Loaded, load_settings
from aghbus.daemon.config.settings import KEYS, Settings, reloadable_changes, value_of
from aghbus.daemon.config.value_types import Duration, Size, ValueSource, show_size, split_address
from aghbus.protocol.base.durations import format_duration

ROOT = Path(__file__).resolve().parents[2]
TEXT = ValueSource(textual=True, folder="/", home="/h")
SECRET = "s3cr3t-value"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A machine whose home is an empty folder."""
    return Host(uid=1000, home=str(tmp_path), hostname="Box.local", folder=str(tmp_path), socket_path_limit=4096)


def load(host: Host, flags: dict[str, Any] | None = None, env: dict[str, str] | None = None) -> Loaded:
    return load_settings(flags or {}, env or {}, host)


def problems_of(
    host: Host, flags: dict[str, Any] | None = None, env: dict[str, str] | None = None
) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        load(host, flags, env)
    return caught.value.problems


def write(host: Host, name: str, text: str) -> str:
    path = Path(host.home, ".config", "aghbus", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_without_any_configuration_name_and_peer_id_come_from_the_host(host: Host) -> None:
    loaded = load(host)
    assert (loaded.settings.name, loaded.settings.peer_id) == ("box.local", "box.local")
    assert (loaded.settings.workspace, loaded.settings.channels) == ("ws_local", ("default",))
    assert loaded.settings.log.level == "warning"
    assert loaded.locations.socket_path == "/tmp/aghbus-1000/box.local.sock"
    assert loaded.files == ()


def test_the_peer_id_defaults_to_the_name(host: Host) -> None:
    assert load(host, {"name": "ops"}).settings.peer_id == "ops"
    assert load(host, {"name": "ops", "peer_id": "other"}).settings.peer_id == "other"


def test_each_layer_wins_over_the_next(host: Host) -> None:
    common = write(host, "aghbus.toml", 'workspace = "common"\n')
    assert load(host, {"name": "ops"}).settings.workspace == "common"
    instance = write(host, "ops.toml", 'workspace = "instance"\n')
    loaded = load(host, {"name": "ops"})
    assert (loaded.settings.workspace, loaded.origins["workspace"]) == ("instance", f"file {instance}")
    assert loaded.files == (common, instance)
    assert load(host, {"name": "other"}).settings.workspace == "common"
    env = {"AGHD_WORKSPACE": "env"}
    assert load(host, {"name": "ops"}, env).settings.workspace == "env"
    assert load(host, {"name": "ops", "workspace": "flag"}, env).settings.workspace == "flag"


def test_a_named_file_stands_alone(host: Host, tmp_path: Path) -> None:
    write(host, "aghbus.toml", 'display_name = "common"\nworkspace = "common"\n')
    (tmp_path / "my.toml").write_text('workspace = "mine"\n')
    for flags, env in (({"config": "my.toml"}, {}), ({}, {"AGHD_CONFIG": "~/my.toml"})):
        settings = load(host, flags, env).settings
        assert (settings.workspace, settings.display_name) == ("mine", None)
    (problem,) = problems_of(host, {"config": "absent.toml"})
    assert "does not exist" in problem.rule


def test_the_common_file_may_name_the_instance_whose_file_is_then_read(host: Host) -> None:
    write(host, "aghbus.toml", 'name = "ops"\n')
    write(host, "ops.toml", 'workspace = "instance"\n')
    assert load(host).settings.workspace == "instance"


def test_an_instance_file_must_not_rename_the_instance(host: Host) -> None:
    write(host, "ops.toml", 'name = "other"\n')
    (problem,) = problems_of(host, {"name": "ops"})
    assert problem.key == "name"
    write(host, "ops.toml", 'name = "ops"\n')
    assert load(host, {"name": "ops"}).settings.name == "ops"


def test_an_empty_variable_counts_as_unset(host: Host) -> None:
    assert load(host, env={"AGHD_WORKSPACE": "", "NATS_URL": ""}).settings == load(host).settings


def test_nats_variables_rank_below_aghd_variables_and_above_files(host: Host) -> None:
    write(host, "aghbus.toml", '[nats]\nservers = ["file:1"]\n')
    assert load(host).settings.nats.servers == ("nats://file:1",)
    env = {"NATS_URL": "nats://shell:2"}
    assert load(host, env=env).settings.nats.servers == ("nats://shell:2",)
    env["AGHD_NATS_SERVERS"] = "tls://ours:3,ours:4"
    assert load(host, env=env).settings.nats.servers == ("tls://ours:3", "nats://ours:4")
    assert load(host, {"nats.servers": ["a:1", "b:2,c:3"]}, env).settings.nats.servers == (
        "nats://a:1",
        "nats://b:2",
        "nats://c:3",
    )


def test_a_server_of_a_stronger_layer_overrides_a_context_and_vice_versa(host: Host) -> None:
    nats = load(host, {"nats.servers": ["a:1"]}, {"NATS_CONTEXT": "prod"}).settings.nats
    assert (nats.servers, nats.context) == (("nats://a:1",), None)
    nats = load(host, {"nats.context": "prod"}, {"NATS_URL": "a:1"}).settings.nats
    assert (nats.servers, nats.context) == ((), "prod")
    nats = load(host, env={"NATS_URL": "a:1", "NATS_CONTEXT": "prod"}).settings.nats
    assert (nats.servers, nats.context) == (("nats://a:1",), "prod")


def test_a_secret_and_its_file_exclude_each_other_only_within_a_layer(host: Host) -> None:
    write(host, "aghbus.toml", f'[nats]\ntoken = "{SECRET}"\ntoken_file = "t"\n')
    (problem,) = problems_of(host)
    assert problem.key == "nats.token_file"
    write(host, "aghbus.toml", '[nats]\ntoken_file = "t"\n')
    nats = load(host, env={"AGHD_NATS_TOKEN": SECRET}).settings.nats
    assert (nats.token, nats.token_file) == (SECRET, None)


def test_all_problems_are_reported_at_once_with_key_origin_and_rule(host: Host) -> None:
    path = write(
        host, "aghbus.toml", 'chanels = ["x"]\nobserve = "yes"\n[store]\nretention_age = "59m"\n[nope]\nx = 1\n'
    )
    problems = problems_of(host, {"name": "Bad Name", "api.tcp": "0.0.0.0:80"}, {"AGHD_LOG_LEVEL": "loud"})
    by_key = {problem.key: problem for problem in problems}
    assert set(by_key) == {"chanels", "observe", "store.retention_age", "nope", "name", "api.tcp", "log.level"}
    assert "channels" in by_key["chanels"].hint
    assert by_key["observe"].origin == f"file {path}"
    assert "1h" in by_key["store.retention_age"].rule
    assert by_key["name"].origin == "flag --name"
    assert "'loud'" in by_key["log.level"].rule
    assert by_key["log.level"].origin == "environment AGHD_LOG_LEVEL"
    assert all(problem.key in problems_text(problems) for problem in problems)


def test_an_overridden_value_is_not_validated(host: Host) -> None:
    write(host, "aghbus.toml", 'workspace = "a.b"\n')
    assert load(host, {"workspace": "fine"}).settings.workspace == "fine"


@pytest.mark.parametrize("named", [{}, {"name": "zz"}, {"name": "zz", "config": ".config/aghbus/aghbus.toml"}])
@pytest.mark.parametrize("name", ["5", '"Bad Name"'])
def test_a_bad_name_in_a_file_is_a_problem_also_where_it_is_overridden(
    host: Host, name: str, named: dict[str, Any]
) -> None:
    path = write(host, "aghbus.toml", f"name = {name}\n")
    (problem,) = problems_of(host, named)
    assert (problem.key, problem.origin) == ("name", f"file {path}")
    assert "must be 1 to 128 characters of a-z" in problem.rule


@pytest.mark.parametrize(
    ("content", "rule"),
    [(b"name = \n", "is not TOML"), (b'name = "\xff"\n', "is not UTF-8"), (b"#" * (1 << 20) + b"#", "larger")],
)
def test_a_malformed_file_is_a_problem(host: Host, tmp_path: Path, content: bytes, rule: str) -> None:
    (tmp_path / "bad.toml").write_bytes(content)
    (problem,) = problems_of(host, {"config": "bad.toml"})
    assert rule in problem.rule
    assert "bad.toml" in problem.origin


def test_a_table_instead_of_a_value_and_the_reverse_are_problems(host: Host) -> None:
    write(host, "aghbus.toml", 'store = "x"\n[workspace]\na = 1\n')
    problems = {problem.key: problem for problem in problems_of(host)}
    assert set(problems) == {"store", "workspace"}
    assert "[store]" in problems["store"].hint


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("workspace", "a.b"),
        ("workspace", "a>"),
        ("channels", ["A"]),
        ("channels", ["a,a"]),
        ("channels", [""]),
        ("peer_id", "UPPER"),
        ("peer_id", "nick@00112233445566778899aabbccddeeff"),
        ("display_name", "\x1b[31mred"),
        ("display_name", " padded"),
        ("observe", "maybe"),
        ("inbox.capacity", "0"),
        ("inbox.capacity", "-1"),
        ("inbox.capacity", "1e3"),
        ("store.retention_size", "1MB"),
        ("defaults.directed_ttl", "8d"),
        ("defaults.directed_ttl", "1.5s"),
        ("discovery.interval", "soon"),
        ("discovery.interval", "nan"),
        ("api.tcp", "8080"),
        ("api.tcp", "192.168.0.1:80"),
        ("api.tcp", "::1:80"),
        ("api.tcp", "127.0.0.1:70000"),
        ("nats.servers", ["http://x:1"]),
        ("nats.servers", ["nats://:1"]),
        ("nats.servers", ["nats://x:0"]),
        ("nats.servers", ["nats://x:99999"]),
        ("store.synchronous", "off"),
    ],
)
def test_values_that_break_their_rule_are_refused(host: Host, key: str, value: object) -> None:
    (problem,) = problems_of(host, {key: value})
    assert problem.key == key


@pytest.mark.parametrize("name", ["Bad Cap", "test.run code.patch", "a\u00a0b", "a\u2003b"])
def test_a_list_in_one_capability_is_refused_with_a_hint(host: Host, name: str) -> None:
    (flag,) = problems_of(host, {"capabilities": [name]})
    write(host, "aghbus.toml", f'capabilities = ["{name}"]\n')
    (file,) = problems_of(host)
    for problem in (flag, file):
        assert problem.key == "capabilities" and "without white space, commas" in problem.rule
        assert "--capability test.run --capability code.patch" in problem.hint
    write(host, "aghbus.toml", 'capabilities = ["test.run,code.patch"]\n')  # commas separate entries in flags only
    assert problems_of(host)[0].key == "capabilities"
    write(host, "aghbus.toml", 'capabilities = ["goals:split", "Überprüfe/1"]\n')
    assert load(host).settings.capabilities == ("goals:split", "Überprüfe/1")


@pytest.mark.parametrize(
    ("key", "text", "typed"),
    [
        ("observe", "on", True),
        ("inbox.capacity", "12", 12),
        ("store.retention_size", "64MiB", 64 << 20),
        ("store.retention_size", "1073741824", 1 << 30),
        ("store.retention_age", "7d", 604_800),
        ("defaults.directed_ttl", "24h", 86_400),
        ("defaults.broadcast_ttl", "90", 90),
        ("discovery.interval", "250ms", 0.25),
        ("api.tcp", "[::1]:4637", "[::1]:4637"),
        ("api.tcp", "localhost:0", "localhost:0"),
        ("capabilities", "test.run,code.patch", ("test.run", "code.patch")),
    ],
)
def test_values_from_the_environment_are_typed(host: Host, key: str, text: str, typed: object) -> None:
    variable = "AGHD_" + key.replace(".", "_").upper()
    assert value_of(load(host, env={variable: text}).settings, key) == typed


@pytest.mark.parametrize(
    ("toml", "key", "typed"),
    [
        ("observe = true", "observe", True),
        ("[inbox]\ncapacity = 5", "inbox.capacity", 5),
        ("[discovery]\ninterval = 2", "discovery.interval", 2.0),
        ("[discovery]\ninterval = 0.5", "discovery.interval", 0.5),
        ("[defaults]\ndirected_ttl = 60", "defaults.directed_ttl", 60),
        ('channels = ["a", "b"]', "channels", ("a", "b")),
    ],
)
def test_values_from_toml_are_typed(host: Host, toml: str, key: str, typed: object) -> None:
    write(host, "aghbus.toml", toml)
    assert value_of(load(host).settings, key) == typed


@pytest.mark.parametrize("toml", ['observe = "true"', '[inbox]\ncapacity = "5"', 'channels = "a,b"', "name = 3"])
def test_toml_values_must_have_their_own_types(host: Host, toml: str) -> None:
    write(host, "aghbus.toml", toml)
    assert len(problems_of(host)) == 1


def test_relative_paths_start_at_their_file_or_at_the_current_folder(host: Host, tmp_path: Path) -> None:
    write(host, "aghbus.toml", '[nats]\ncreds = "x.creds"\ntls_ca = "~/ca.pem"\n')
    nats = load(host).settings.nats
    assert (nats.creds, nats.tls_ca) == (f"{host.home}/.config/aghbus/x.creds", f"{host.home}/ca.pem")
    assert load(host, {"nats.creds": "y.creds"}).settings.nats.creds == str(tmp_path / "y.creds")


def test_the_places_follow_the_settings(host: Host) -> None:
    loaded = load(host, {"name": "ops", "api.socket": "s/x.sock", "store.path": "/d/x.db", "broker.directory": "/b"})
    places = loaded.locations
    assert (places.socket_path, places.store_path, places.broker_dir) == (f"{host.folder}/s/x.sock", "/d/x.db", "/b")


def test_a_socket_path_that_is_too_long_is_a_problem_with_a_hint(host: Host) -> None:
    short = Host(uid=1, home=host.home, hostname="h", folder="/", socket_path_limit=108)
    (problem,) = problems_of(short, {"name": "n" * 100})
    assert problem.key == "api.socket"
    assert "--name" in problem.hint


def test_embedded_never_without_a_server_is_a_problem(host: Host) -> None:
    (problem,) = problems_of(host, {"broker.embedded": "never"})
    assert problem.key == "broker.embedded"
    assert load(host, {"broker.embedded": "never"}, {"NATS_URL": "x:1"}).settings.broker.embedded == "never"


def test_unknown_aghd_variables_are_noted_with_a_suggestion(host: Host) -> None:
    (note,) = load(host, env={"AGHD_PEERID": "x", "OTHER": "y", "AGHD_NAME": "ops"}).notes
    assert "AGHD_PEERID" in note
    assert "AGHD_PEER_ID" in note


def test_secrets_appear_nowhere(host: Host) -> None:
    env = {"AGHD_NATS_TOKEN": SECRET, "NATS_URL": f"nats://user:{SECRET}@h:1,nats://{SECRET}@i:2"}
    loaded = load(host, env=env)
    assert loaded.settings.nats.token == SECRET
    for text in (show_text(loaded), show_json(loaded), repr(loaded), str(loaded.settings)):
        assert SECRET not in text
    assert "nats://***@h:1" in show_text(loaded)
    rows = {row["key"]: row for row in json.loads(show_json(loaded))["settings"]}
    assert rows["nats.token"] == {"key": "nats.token", "value": "***", "origin": "environment AGHD_NATS_TOKEN"}
    assert rows["nats.password"]["value"] is None


@pytest.mark.parametrize(
    "env",
    [
        {"AGHD_NATS_TOKEN": f" {SECRET}"},
        {"AGHD_NATS_PASSWORD": f"{SECRET}\n"},
        {"NATS_URL": f"http://{SECRET}@h:1"},
        {"AGHD_NATS_SERVERS": f"ok:1,nats://u:{SECRET}@h:bad"},
        {"AGHD_NATS_CREDS": f"-----BEGIN\n{SECRET}"},
    ],
)
def test_a_bad_secret_is_not_repeated_in_its_problem(host: Host, env: dict[str, str]) -> None:
    (problem,) = problems_of(host, env=env)
    assert SECRET not in str(problem)


def test_an_nkey_seed_instead_of_a_path_is_refused_and_not_repeated(host: Host) -> None:
    seed = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
    (problem,) = problems_of(host, {"nats.nkey": seed})
    assert seed not in str(problem)
    assert "0600" in problem.hint


def test_no_secret_has_a_flag() -> None:
    assert {key.name for key in KEYS if key.spec.secret} == {"nats.token", "nats.password"}
    assert not [key for key in KEYS if key.spec.secret and key.flag]


def test_credentials_in_the_nats_flag_are_noted(host: Host) -> None:
    (note,) = load(host, {"nats.servers": [f"nats://u:{SECRET}@h:1"]}).notes
    assert "process list" in note
    assert SECRET not in note


def test_a_file_with_a_secret_that_others_may_read_is_noted(host: Host) -> None:
    path = Path(write(host, "aghbus.toml", f'[nats]\ntoken = "{SECRET}"\n'))
    path.chmod(0o644)
    (note,) = load(host).notes
    assert "chmod 600" in note
    path.chmod(0o600)
    assert load(host).notes == ()


def test_control_characters_in_a_file_do_not_reach_the_terminal(host: Host) -> None:
    write(host, "aghbus.toml", '"a\\u001b[31m" = 1\nname = "\\u202eops"\n')
    text = problems_text(problems_of(host))
    assert text.replace("\n", "").isprintable()


def test_reload_separates_reloadable_keys_from_restart_keys(host: Host) -> None:
    old = load(host).settings
    flags = {
        "log.level": "debug",
        "capabilities": ["a"],
        "store.retention_age": "9d",
        "workspace": "w",
        "nats.servers": ["h:1"],
    }
    changes = reloadable_changes(old, load(host, flags).settings)
    assert set(changes.now) == {"log.level", "capabilities", "store.retention_age"}
    assert set(changes.restart) == {"workspace", "nats.servers"}
    assert reloadable_changes(old, old).now == reloadable_changes(old, old).restart == ()


def test_names_flags_and_variables_are_unique() -> None:
    for names in ([key.name for key in KEYS], [key.env for key in KEYS], [key.flag for key in KEYS if key.flag]):
        assert len(set(names)) == len(names)


def test_every_default_obeys_its_own_rule() -> None:
    source = ValueSource(textual=False, folder="/", home="/")
    for key in KEYS:
        if key.default not in (None, ""):
            assert key.spec.rule.read(key.spec.rule.show(key.default), source) == key.default


def test_the_manual_holds_the_table_of_keys() -> None:
    manual = (ROOT / "docs" / "configuration.md").read_text()
    assert keys_table() in manual, "put what aghbus.daemon.config.display.keys_table() returns into it"


def test_annotated_example_has_every_key_with_a_valid_value(host: Host) -> None:
    lines = (ROOT / "deploy" / "aghbus.toml").read_text().splitlines()
    assert load(host, {"config": str(ROOT / "deploy" / "aghbus.toml")}).settings == load(host).settings
    shown: dict[str, object] = {}
    table = ""
    for line in lines:
        if line.startswith("["):
            table = line.strip("[]") + "."
        elif line.startswith("#") and not line.startswith("# ") and line != "#":
            ((name, value),) = tomllib.loads(line[1:]).items()
            path = Path(host.folder, "one.toml")
            path.write_text(f"{f'[{table[:-1]}]' if table else ''}\n{line[1:]}\n")
            settings = load(host, {"config": str(path)}).settings
            shown[table + name] = value_of(settings, table + name)
            assert value is not None
    assert set(shown) == {key.name for key in KEYS}
    for key in KEYS:
        if key.default not in (None, "", ()):
            assert shown[key.name] == key.default, key.name


@given(st.integers(min_value=0, max_value=10**9))
def test_durations_are_read_back_as_they_are_shown(seconds: int) -> None:
    assert Duration(0, whole=True).read(format_duration(seconds), TEXT) == seconds


@given(st.integers(min_value=0, max_value=1 << 50))
def test_sizes_are_read_back_as_they_are_shown(size: int) -> None:
    assert Size(0).read(show_size(size), TEXT) == size


@settings(max_examples=20)  # each of them for every key
@given(st.text(max_size=40))
def test_no_text_crashes_the_reader(text: str) -> None:
    host = Host(uid=1, home="/h", hostname="h", folder="/", socket_path_limit=4096)
    for key in KEYS:
        try:
            load_settings({}, {"AGHD_CONFIG": "/dev/null", key.env: text}, host)
        except ConfigError as error:
            assert error.problems


def test_addresses_are_split() -> None:
    assert split_address("127.0.0.1:80") == ("127.0.0.1", 80)
    assert split_address("[::1]:0") == ("::1", 0)


def test_settings_are_immutable() -> None:
    assert Settings(name="a") == Settings(name="a")
    assert hash(Settings(name="a")) == hash(Settings(name="a"))
