"""The JSON of aghctl has `v`, and the fields that docs/cli.md promises."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemons import Daemon, Home, wait_for

MANUAL = (Path(__file__).parent.parent.parent / "docs" / "cli.md").read_text()
SECTION = MANUAL.partition("### Fields that stay")[2].partition("\n## ")[0]
PROMISED = {
    command: re.findall(r"`([^`]+)`", fields)
    for command, fields in re.findall(r"^\| `?([^`|]+?)`? \| (`.*) \|$", SECTION, re.MULTILINE)
}
WORK = "work_with_stable_fields"
ARGUMENTS = {
    "wait": ["--peer", "worker"],
    "work open": ["--to", "worker", "--text", "another"],
    "work run": ["--to", "worker", "--text", "another", "--wait", "0"],
    "work retry": [WORK, "--id", "msg_tried_again"],  # the same answer twice
    "work show": [WORK],
    "work watch": [WORK],
    "messages show": ["msg_stable"],
    "messages search": ["hello"],
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A home in which `worker` has completed a work of `ops` and said something to it."""
    home = Home(tmp_path_factory.mktemp("stable"))
    with Daemon(home, "worker") as worker, Daemon(home, "ops", "--capability", "test.run") as ops:
        wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 20, "the two to know each other")
        open_work = ["work", "open", "--to", "worker", "--text", "t", "--work-id", WORK, "--id", "msg_stable"]
        home.ctl_json("--name", "ops", *open_work)
        home.ctl_json("--name", "worker", "inbox", "next", "--wait", "30s", "--ack", "--work", WORK)
        home.ctl_json("--name", "worker", "work", "complete", WORK)
        home.ctl_json("--name", "worker", "say", "hello", "--to", "ops")
        wait_for(lambda: home.ctl_json("--name", "ops", "inbox", "list")["items"], 20, "the message")
        assert home.ctl("--name", "ops", "work", "watch", WORK).returncode == 0
        yield home


def objects_at(document: Any, path: str) -> list[Any]:
    """The objects that have the last name of `path`, where `[]` stands for every entry of a list, of which there is one."""
    found = [document]
    for step in path.split(".")[:-1]:
        found = [one[step.removesuffix("[]")] for one in found]
        if step.endswith("[]"):
            found = [entry for one in found for entry in one]
    assert found
    return found


@pytest.mark.parametrize("command", [name for name in PROMISED if name != "every error"])
def test_promised_fields_are_there(home: Home, command: str) -> None:
    arguments = ["--name", "ops", *command.split(), *ARGUMENTS.get(command, [])]
    documents = [json.loads(home.ctl(*arguments, "-o", "json").stdout)] if command != "work watch" else []
    documents += [json.loads(line) for line in home.ctl(*arguments, "-o", "jsonl").stdout.splitlines()]
    assert documents and all(document["v"] == 1 for document in documents)
    for path in PROMISED[command]:
        assert all(path.rpartition(".")[2] in found for found in objects_at(documents[0], path)), path


@pytest.mark.parametrize("arguments", [["--name", "nobody", "status"], ["work", "shwo"], ["messages", "show", "none"]])
def test_errors_have_their_promised_fields(home: Home, arguments: list[str]) -> None:
    error = json.loads(home.ctl(*arguments, "-o", "json").stderr)
    assert set(error) == {"v", *PROMISED["every error"]}


def test_the_table_of_the_manual_was_read() -> None:
    assert len(PROMISED) >= 17
