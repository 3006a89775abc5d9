"""The command line of aghd as a process: output, exit codes, and no files left."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from aghbus.daemon.config.settings import KEYS


def aghd(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    env = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, "-m", "aghbus.daemon", *arguments], env=env, cwd=home, capture_output=True, text=True
    )


def test_config_check_prints_every_problem_of_every_layer_and_exits_2(tmp_path: Path) -> None:
    (tmp_path / "caps.json").write_text("[{}]")
    result = aghd(
        "config",
        "check",
        "--name",
        "BAD",
        "--catalog",
        "caps.json",
        "--nats",
        "h:1",
        "--nats-creds",
        "nope",
        home=tmp_path,
    )
    assert result.returncode == 2
    for word in ("name: ", "nats.creds: ", "caps.json", "flag --name"):
        assert word in result.stderr
    result = aghd("config", "check", "--name", "BAD", "-o", "json", home=tmp_path)
    report = json.loads(result.stdout)
    assert (result.returncode, report["ok"], [p["key"] for p in report["problems"]]) == (2, False, ["name"])


def test_config_check_of_the_defaults_is_good(tmp_path: Path) -> None:
    assert aghd("config", "check", home=tmp_path).returncode == 0
    assert json.loads(aghd("config", "check", "-o", "json", home=tmp_path).stdout) == {
        "ok": True,
        "problems": [],
        "notes": [],
    }


def test_config_show_reads_options_and_shows_the_origin_of_values(tmp_path: Path) -> None:
    result = aghd(
        "config", "show", "--name", "ops", "--capability", "a", "--capability", "b", "--observe", "-vv", home=tmp_path
    )
    assert result.returncode == 0
    for line in ('name = "ops"  # flag --name', 'capabilities = ["a", "b"]', "observe = true", 'log.level = "debug"'):
        assert line in result.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments", [(), ("config",), ("run", "--nope"), ("run", "--nam", "x"), ("run", "--name", "A")]
)
def test_usage_errors_exit_2(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    result = aghd(*arguments, home=tmp_path)
    assert result.returncode == 2
    assert result.stderr
    assert not result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rnu",), "unknown command rnu\n    hint: did you mean run?"),
        (("config",), "config: which command?\n    hint: one of: show, check"),
        (("run", "--capabilty", "x"), "unknown option --capabilty\n    hint: did you mean --capability?"),
        (("version", "-o", "xml"), "-o/--output: invalid choice: 'xml'"),
        (("run", "now"), "unexpected argument 'now'"),
        (("check-store", "--quick", "--accept-loss"), "--quick and --accept-loss exclude each other"),
    ],
)
def test_a_usage_error_names_rule_and_next_step(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    result = aghd(*arguments, home=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"aghd: {message}")


def test_version_and_help(tmp_path: Path) -> None:
    assert aghd("version", home=tmp_path).stdout.startswith("aghd ")
    assert aghd("--version", home=tmp_path).stdout == aghd("version", home=tmp_path).stdout
    assert json.loads(aghd("version", "-o", "json", home=tmp_path).stdout)["protocol"] == "agh-network/v0"
    text = aghd("run", "--help", home=tmp_path).stdout
    assert "--capability test.run" in text
    assert all(key.flag in text for key in KEYS)


def test_run_stops_with_a_hint_if_a_folder_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / ".local").write_text("in the way")
    result = aghd("run", "--name", "ops", home=tmp_path)
    assert result.returncode == 1
    assert "hint:" in result.stderr
