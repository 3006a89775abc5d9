"""The summary of a greet: set in the configuration, kept over a restart, shown; and kinds that the log does not have."""

from pathlib import Path

from tests.support.bridge_daemons import SHORT, daemons
from tests.support.daemons import Daemon, wait_for

SUMMARY = "Available for patch review."


def summaries(daemon: Daemon) -> dict[str, str | None]:
    return {peer["peer_id"]: peer["summary"] for peer in daemon.get("/v1/peers")["peers"]}


def test_the_summary_of_a_greet_is_kept_and_shown(tmp_path: Path) -> None:
    with daemons(tmp_path, ("ops",), ("worker", "--summary", SUMMARY)) as (ops, worker):
        wait_for(lambda: summaries(ops) == {"ops": None, "worker": SUMMARY}, SHORT, "the summary")
        assert summaries(worker) == {"ops": None, "worker": SUMMARY}
        assert ops.post("/v1/whois", to="worker")["peers"][0]["summary"] == SUMMARY
        for words in (("peers",), ("whois", "--to", "worker")):
            assert SUMMARY in ops.home.ctl("--name", "ops", *words).stdout.decode()
        assert worker.stop() == 0
        assert ops.stop() == 0
        ops.start()
        assert summaries(ops)["worker"] == SUMMARY
        worker.args = ()
        worker.start()
        wait_for(lambda: summaries(ops)["worker"] is None, SHORT, "the greet without a summary")
        assert worker.stop() == 0
        assert ops.stop() == 0
        ops.start()
        assert summaries(ops)["worker"] is None


def test_kinds_that_are_not_stored_are_not_offered(tmp_path: Path) -> None:
    with daemons(tmp_path, ("ops",)) as (ops,):
        for kind in ("greet", "whois"):
            refused = ops.home.ctl("--name", "ops", "messages", "list", "--kind", kind)
            assert refused.returncode == 2
            assert b"choose from 'say', 'capability', 'receipt', 'trace'" in refused.stderr
