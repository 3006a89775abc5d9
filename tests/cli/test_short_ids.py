"""Ids by their end, in every place that takes one, and `--last`."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aghbus.cli.app.text import short_id
from aghbus.cli.context import Context
from aghbus.cli.ids import gather
from aghbus.client.api import Api
from aghbus.client.http import Endpoint, Query
from tests.support.chain_agents import begin, chain
from tests.support.daemons import Daemon, Home, ops_and_worker, wait_for
from tests.support.terminals import TerminalProgram

Bus = tuple[Home, Daemon, Daemon]


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    home = Home(tmp_path_factory.mktemp("ids"))
    with ops_and_worker(home) as (ops, worker):
        yield home, ops, worker


def opened(bus: Bus, text: str = "do it", **fields: str) -> str:
    _, ops, worker = bus
    work_id: str = ops.post("/v1/works", to="worker", text=text, **fields)["work_id"]
    wait_for(lambda: worker.state_of(work_id), 30, "the work")
    return work_id


def test_a_work_is_found_by_its_end_in_every_command(bus: Bus) -> None:
    home, ops, _ = bus
    work = opened(bus)
    end = work[-10:]
    assert home.ctl_json("--name", "ops", "work", "show", end)["work"]["work_id"] == work
    assert home.ctl_json("--name", "ops", "messages", "list", "--work", end)["messages"][0]["work_id"] == work
    assert home.ctl_json("--name", "worker", "inbox", "next", "--work", end)["item"]["message"]["work_id"] == work
    assert home.ctl_json("--name", "worker", "work", "accept", end)["work_id"] == work
    assert home.ctl_json("--name", "worker", "work", "complete", end)["work_id"] == work
    wait_for(lambda: ops.state_of(work) == "completed", 30, "the end")
    watched = home.ctl("--name", "ops", "work", "watch", end)
    assert (watched.returncode, f"{work} completed" in watched.stderr.decode()) == (0, True)
    put = home.ctl_json("--name", "ops", "artifact", "list", end)
    assert put["artifacts"] == []


def test_four_characters_are_enough_and_three_are_not(bus: Bus) -> None:
    home, _, _ = bus
    work = opened(bus, work_id="work_of-the-last-zxyw")
    assert home.ctl_json("--name", "ops", "work", "show", "zxyw")["work"]["work_id"] == work
    short = home.ctl("--name", "ops", "work", "show", "xyw", "-o", "json")
    assert (short.returncode, json.loads(short.stderr)["code"]) == (4, "not_found")


def test_an_unknown_end_is_refused_as_an_unknown_id_is(bus: Bus) -> None:
    home, _, _ = bus
    for given in ("0000-not-there", "work_0000nowhere"):
        done = home.ctl("--name", "ops", "work", "show", given)
        assert (done.returncode, f"no work {given} is known here" in done.stderr.decode()) == (4, True)


def test_an_ambiguous_end_names_the_candidates(bus: Bus) -> None:
    home, _, _ = bus
    both = [opened(bus, work_id=f"work_{name}-samesame") for name in ("one", "two")]
    done = home.ctl("--name", "ops", "work", "cancel", "samesame")
    assert done.returncode == 2
    assert all(work in done.stderr.decode() for work in both)
    assert {bus[1].state_of(work) for work in both} == {"submitted"}


def test_a_whole_id_wins_over_one_that_ends_in_it(bus: Bus) -> None:
    home, ops, _ = bus
    for name in ("run-77", "other-run-77"):
        ops.post("/v1/messages", to="worker", kind="say", body={"text": name}, id=name)
    assert home.ctl_json("--name", "ops", "messages", "show", "run-77")["envelope"]["body"] == {"text": "run-77"}


def test_messages_and_runs_are_found_by_their_end(bus: Bus) -> None:
    home, ops, _ = bus
    sent = ops.post("/v1/messages", to="worker", kind="say", body={"text": "hello"})["id"]
    assert home.ctl_json("--name", "ops", "messages", "show", sent[-9:])["id"] == sent
    assert home.ctl_json("--name", "ops", "trust", "why", sent[-9:])["cases"][0]["message_id"] == sent
    ops.post("/v1/messages", to="worker", kind="say", body={"text": "hello"}, id="say-0000597104001")
    assert home.ctl_json("--name", "ops", "trust", "why", "597104001")["cases"][0]["message_id"] == "say-0000597104001"
    run = begin(ops, chain({"a": {"peer": "worker", "input": "x"}}))
    for verb in ("show", "cancel"):
        assert home.ctl_json("--name", "ops", "chain", verb, run[-9:])["run_id"] == run


def test_last_is_the_work_that_was_opened_last_in_the_role_of_the_command(bus: Bus) -> None:
    home, ops, worker = bus
    first = opened(bus, "the first")
    mine = opened(bus, "the second")
    worker.post(f"/v1/works/{first}/accept")
    wait_for(lambda: ops.state_of(first) == "working", 30, "a later change of an earlier work")
    done = home.ctl("--name", "ops", "work", "show", "--last", "-o", "json")
    assert json.loads(done.stdout)["work"]["work_id"] == mine
    theirs = worker.post("/v1/works", to="ops", text="for us")["work_id"]
    wait_for(lambda: ops.state_of(theirs), 30, "the work")
    accepted = home.ctl("--name", "ops", "work", "accept", "--last")
    assert (accepted.returncode, theirs in accepted.stdout.decode()) == (0, True)
    said = home.ctl("--name", "worker", "work", "say", "--last", "more about it")
    assert said.returncode == 0
    assert f"{theirs} for ops: “for us”" in said.stderr.decode()
    shown = home.ctl_json("--name", "worker", "work", "show", theirs)
    assert shown["history"][-1]["message"] == "more about it"


def test_last_without_a_work_is_an_answer(tmp_path: Path) -> None:
    with Daemon(Home(tmp_path), "alone") as alone:
        done = alone.home.ctl("--name", "alone", "work", "accept", "--last")
        assert (done.returncode, "no work for us is known" in done.stderr.decode()) == (1, True)


def test_lists_show_ends_where_whole_ids_do_not_fit(bus: Bus) -> None:
    home, _, _ = bus
    work = opened(bus, "x" * 200)
    command = [sys.executable, "-m", "aghbus.cli", "--name", "ops", "work", "list", "--limit", "1"]
    with TerminalProgram(command, home.env, home.root, columns=100) as narrow:
        assert narrow.wait() == 0
    end = short_id(work)
    assert (len(end), work.endswith(end)) == (8, True)
    assert f"\n{end}  " in narrow.shown.decode().replace("\r", "") and work not in narrow.shown.decode()
    with TerminalProgram(command, home.env, home.root, columns=400) as wide:
        assert wide.wait() == 0
    assert work in wide.shown.decode()
    assert work.encode() in subprocess.run(command, env=home.env, capture_output=True, check=True).stdout
    assert home.ctl_json("--name", "ops", "work", "show", end)["work"]["work_id"] == work


@pytest.mark.parametrize("own_id", [None, "work_nightly-2026-11-24"])
def test_an_id_in_a_narrow_inbox_can_be_pasted(tmp_path: Path, own_id: str | None) -> None:
    long = "a-peer-whose-name-is-long-enough-to-be-cut-in-every-list"
    with (
        Daemon(Home(tmp_path), "worker") as worker,
        Daemon(worker.home, "asker", "--peer-id", long) as asker,
    ):
        wait_for(lambda: asker.knows("worker"), 30, "the worker")
        ids = {} if own_id is None else {"work_id": own_id}
        work = asker.post("/v1/works", to="worker", text="x" * 100, **ids)["work_id"]
        wait_for(lambda: worker.state_of(work), 30, "the work")
        command = [sys.executable, "-m", "aghbus.cli", "--name", "worker", "inbox", "list"]
        with TerminalProgram(command, worker.home.env, worker.home.root, columns=60) as narrow:
            assert narrow.wait() == 0
        ends = [word for word in narrow.shown.decode().split() if len(word) >= 8 and work.endswith(word)]
        assert len(ends) == 1, narrow.shown
        assert worker.home.ctl_json("--name", "worker", "work", "show", ends[0])["work"]["work_id"] == work


def test_short_pages_are_followed_until_the_rows_are_enough() -> None:
    pages = {None: (["a"], 9), 9: ([], 5), 5: (["b", "c"], 2), 2: (["d"], None)}
    asked: list[dict[str, Any]] = []

    class Paged(Api):
        def get(self, path: str, query: Query = ()) -> dict[str, Any]:
            asked.append(dict(query))
            rows, before = pages[asked[-1]["before"]]
            return {"works": rows[: asked[-1]["limit"]], "next_before": before}

    class Ours(Context):
        @property
        def api(self) -> Api:
            return Paged(Endpoint(), 1.0)

    context = Ours({"output": None, "timeout": None})
    assert gather(context, "/v1/works", [("text", "x")], "works", 3)["works"] == ["a", "b", "c"]
    assert [query["limit"] for query in asked] == [3, 2, 2]
    assert gather(context, "/v1/works", [], "works", 9) == {"works": ["a", "b", "c", "d"], "next_before": None}


def test_only_generated_ids_are_shortened() -> None:
    assert short_id("work_0199a3f2c0de7000800000000abcdef1") == "0abcdef1"
    for whole in ("work_review-7", "run_x", "msg_0199a3f2c0de7000800000000abcdefg", "msg_auto"):
        assert short_id(whole) == whole
