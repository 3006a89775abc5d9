"""`aghctl trust …` against one daemon: refusals, notes, and forms of output."""

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from aghbus.host.key_files import generate_key
from tests.support.daemons import Daemon, Home

KEY, OTHER = generate_key().key_id, generate_key().key_id


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def own_key(home: Home) -> str:
    return str(home.ctl_json("--name", "ops", "key", "generate")["key_id"])


@pytest.fixture(scope="module")
def daemon(home: Home, own_key: str) -> Iterator[Daemon]:
    assert own_key
    path = home.root / "config/aghbus/ops.toml"
    path.parent.mkdir(parents=True)
    path.write_text(f'[trust]\npins = ["carol={KEY}"]\ndeny = ["{OTHER}"]\n')
    with Daemon(home, "ops") as running:
        yield running


def no(home: Home, *args: str, code: int = 4) -> str:
    done = home.ctl("--name", "ops", "trust", *args)
    assert (done.returncode, done.stdout) == (code, b""), done
    return done.stderr.decode()


def yes(home: Home, *args: str) -> tuple[str, str]:
    done = home.ctl("--name", "ops", "trust", *args)
    assert done.returncode == 0, done
    return done.stdout.decode(), done.stderr.decode()


def test_the_list_names_the_origin_of_each_rule(home: Home, daemon: Daemon, own_key: str) -> None:
    listed = home.ctl_json("--name", "ops", "trust", "list")
    assert (listed["mode"], listed["first_use"], listed["key_id"]) == ("verify", "off", own_key)
    assert {(rule["rule"], rule["origin"]) for rule in listed["rules"]} >= {
        ("pin", "configuration"),
        ("deny", "configuration"),
    }
    human, _ = yes(home, "list")
    (line,) = [line for line in human.splitlines() if line.startswith("pin")]
    assert line.split() == ["pin", "carol", "configuration", "-", KEY]
    lines = home.ctl("--name", "ops", "trust", "list", "-o", "jsonl").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [{"v": 1, **rule} for rule in listed["rules"]]


def test_rules_of_the_configuration_are_not_changed_here(home: Home, daemon: Daemon) -> None:
    assert "trust.pins" in no(home, "unpin", "carol")
    assert "trust.deny" in no(home, "deny", OTHER, "--remove")
    assert "is pinned to" in no(home, "pin", f"carol={OTHER}")
    assert "the configuration has this rule" in yes(home, "deny", OTHER)[1]
    assert "is denied" in no(home, "allow", OTHER)


def test_notes_report_first_rule_exclusions_and_admission_without_rules(home: Home, daemon: Daemon) -> None:
    assert "messages of every other key are refused" in yes(home, "allow", KEY)[1]
    assert "every key" in yes(home, "allow", KEY, "--remove")[1]
    assert "no other peer may open work" in yes(home, "allow", "dave", "--channel", "default")[1]
    assert yes(home, "allow", "erin", "--channel", "default")[1] == ""
    assert yes(home, "allow", "erin", "--channel", "default", "--remove")[1] == ""
    assert "every peer" in yes(home, "allow", "dave", "--channel", "default", "--remove")[1]
    assert "every peer" in yes_after(home, "allow", "dave", "--channel", "default", "--talk")


def yes_after(home: Home, *args: str) -> str:
    """The notes of removing a rule that was just created."""
    yes(home, *args)
    return yes(home, *args, "--remove")[1]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("deny", KEY[:-1]), "a peer id, a handle or a key id"),
        (("admit", f"{KEY[:21]}…"), "show peers whole"),
        (("admit", OTHER), f"first `aghctl --name ops trust deny {OTHER} --remove`"),
        (("refuse", "dave", "--remove"), "no such rule"),
        (("allow", f"dave@{'0' * 32}"), "no recent message"),
        (("pin", "dave"), "NICKNAME=KEY_ID"),
        (("pin", f"Dave={KEY}"), "NICKNAME=KEY_ID"),
        (("unpin", "nobody"), "no such rule"),
        (("deny", KEY, "--remove"), "no such rule"),
        (("allow", "dave"), "key id or a handle"),
        (("allow", "d ave", "--channel", "default"), "who: must be"),
        (("allow", "dave", "--channel", "elsewhere"), "is not joined here"),
        (("why", "msg_nowhere"), "stored here or in quarantine"),
        (("why", "18446744073709551616999"), "stored here or in quarantine"),
    ],
)
def test_an_invalid_rule_is_refused_with_its_reason(
    home: Home, daemon: Daemon, args: tuple[str, ...], said: str
) -> None:
    assert said in no(home, *args)


def test_our_own_key_cannot_be_denied_and_talk_needs_a_channel(home: Home, daemon: Daemon, own_key: str) -> None:
    assert "own key" in no(home, "deny", own_key)
    assert "--channel" in no(home, "allow", "dave", "--talk", code=2)


def test_a_message_of_our_own_is_explained_as_such(home: Home, daemon: Daemon, own_key: str) -> None:
    sent = home.ctl_json("--name", "ops", "say", "hello to all", "--thread", "new")["id"]
    (case,) = home.ctl_json("--name", "ops", "trust", "why", sent)["cases"]
    assert (case["place"], case["recorded"], case["key_id"]) == ("stored", "verified", own_key)
    assert [check["check"] for check in case["checks"]] == ["envelope", "proof", "signature", "own"]
    human, _ = yes(home, "why", sent)
    assert f"signed by {own_key}" in human
    own = next(peer for peer in daemon.get("/v1/peers")["peers"] if peer["presence"] == "local")
    assert own["trust"] == "verified"


def test_unused_pins_of_first_use_are_removed_and_all_others_stay(tmp_path: Path) -> None:
    home = Home(tmp_path)
    day_ms, now_ms = 86_400_000, time.time_ns() // 1_000_000
    with Daemon(home, "ops"):
        pass
    rows = [
        ("pin", "old", KEY, "first_use", now_ms - 9 * day_ms, now_ms - 2 * day_ms),
        ("pin", "used", KEY, "first_use", now_ms - 9 * day_ms, now_ms - day_ms // 2),
        ("pin", "mine", KEY, "operator", now_ms - 9 * day_ms, None),
    ]
    with closing(sqlite3.connect(tmp_path / "state/aghbus/instances/ops/store.db")) as db, db:
        db.executemany("INSERT INTO trust_rules VALUES (?, ?, ?, ?, ?, ?)", rows)
    with Daemon(home, "ops"):
        assert yes(home, "unpin", "--unused") == (f"pin old={KEY} (removed)\n", "")
        left = home.ctl_json("--name", "ops", "trust", "list")["rules"]
        assert {rule["subject"] for rule in left} == {"used", "mine"}
        assert "no pin of first use" in yes(home, "unpin", "--unused")[1]
        assert "--unused" in no(home, "unpin", code=2)
        assert "--unused" in no(home, "unpin", "used", "--unused", code=2)
