"""`aghctl bridge humaninloop apply`: what it writes, lists and refuses, and which outputs of works it takes."""

import json
from pathlib import Path
from typing import Any

import pytest

from aghbus.cli.app.errors import AnswerIsNo
from aghbus.cli.app.registry import PROGRAM
from aghbus.cli.context import Context
from aghbus.client.errors import ClientError, UsageError
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.trees import tree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "docs").mkdir(parents=True)
    (folder / "docs" / "spec.md").write_text("old\n")
    return folder


def run(*argv: str) -> int:
    command, values = PROGRAM.parse(["bridge", "humaninloop", "apply", *argv])
    return command.run(Context(values), values)


def message(*artifacts: dict[str, str], **changed: Any) -> dict[str, Any]:
    return {"success": True, "summary": "s", "artifacts": list(artifacts), "recommendation": "proceed", **changed}


def artifact(path: str, operation: str = "create", content: str = "new\n") -> dict[str, str]:
    return {"path": path, "operation": operation, "content": content}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "output.json"


def test_the_command_writes_the_files_and_lists_them(
    root: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(json.dumps(message(artifact("specs/f/a.md"), artifact("docs/spec.md", "update"))))
    assert run("--file", str(file), "--root", str(root), "--feature-root", "specs/f/", "-o", "json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["written"] is True
    assert [(row["path"], row["operation"], row["size"]) for row in answer["files"]] == [
        ("a.md", "create", 4),
        ("docs/spec.md", "update", 4),
    ]
    assert [row["rule"] for row in answer["findings"]] == ["feature_root_stripped"]
    assert (root / "a.md").read_text() == (root / "docs" / "spec.md").read_text() == "new\n"


def test_a_dry_run_checks_and_writes_nothing(root: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(root)
    file.write_text(json.dumps(message(artifact("a/b.md"))))
    assert run("--file", str(file), "--root", str(root), "--dry-run", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["written"] is False
    assert tree(root) == before
    file.write_text(json.dumps(message(artifact("docs/spec.md"))))
    with pytest.raises(AnswerIsNo):
        run("--file", str(file), "--root", str(root), "--dry-run")


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (message(artifact("../x")), "path_dots"),
        (message(artifact("/etc/x")), "path_absolute"),
        (message(artifact("a"), artifact("A")), "path_twice"),
        (message(artifact("caf\u00e9"), artifact("cafe\u0301")), "path_twice"),
        (message(artifact("a"), artifact("a/b")), "file_as_folder"),
        (message(artifact("a", "delete")), "enum"),
        (message(recommendation="retry"), "not_completed"),
        (message(recommendation="escalate"), "not_completed"),
        (message(success=False), "not_completed"),
        ({"context": {}, "paths": {}, "task": {}}, "not_an_output"),
        ([], "type"),
    ],
)
def test_invalid_input_of_the_command_is_refused(root: Path, file: Path, content: Any, code: str) -> None:
    before = tree(root)
    file.write_text(json.dumps(content))
    with pytest.raises(AnswerIsNo) as caught:
        run("--file", str(file), "--root", str(root))
    assert caught.value.code == code
    assert tree(root) == before


def test_an_invalid_root_is_named(tmp_path: Path, file: Path) -> None:
    file.write_text(json.dumps(message(artifact("x.md"))))
    with pytest.raises(UsageError, match="--root"):
        run("--file", str(file), "--root", str(tmp_path / "missing"))


def test_work_and_file_exclude_each_other(root: Path) -> None:
    for argv in (["--root", str(root)], ["--root", str(root), "--work", "w", "--file", "f"]):
        with pytest.raises(ClientError) as caught:
            run(*argv)
        assert caught.value.code == "usage"


# with daemons


def test_only_a_completed_work_is_applied_on_both_sides(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    question = {
        "context": {"feature_id": "005", "workflow": "specify", "iteration": 1},
        "paths": {"feature_root": "specs/005/"},
        "task": {"action": "write"},
    }
    answer = message(artifact("specs/005/spec.md", content="carried\n"))
    with Daemon(home, "checker") as checker, Daemon(home, "flow") as flow:
        wait_for(lambda: flow.knows("checker") and checker.knows("flow"), 20, "the two to know each other")
        ext = {"humaninloop.message": question}
        work_id = flow.post("/v1/works", to="checker", text="write", ext=ext)["work_id"]
        wait_for(lambda: any(work["work_id"] == work_id for work in checker.get("/v1/works")["works"]), 20, "the work")
        argv = ["--work", work_id, "--root", str(tmp_path / "root"), "-o", "json"]
        (tmp_path / "root").mkdir()
        with pytest.raises(AnswerIsNo) as caught:
            run("--socket", str(flow.socket_path), *argv)
        assert caught.value.code == "not_completed"
        assert "submitted" in caught.value.message
        checker.post(f"/v1/works/{work_id}/complete", message="s", ext={"humaninloop.message": answer})
        wait_for(lambda: flow.state_of(work_id) == "completed", 20, "the end")
        for side in (flow, checker):
            assert run("--socket", str(side.socket_path), *argv) == 0
            assert (tmp_path / "root" / "spec.md").read_text() == "carried\n"
            (tmp_path / "root" / "spec.md").unlink()
        plain = flow.post("/v1/works", to="checker", text="plain")["work_id"]
        wait_for(lambda: any(work["work_id"] == plain for work in checker.get("/v1/works")["works"]), 20, "the work")
        checker.post(f"/v1/works/{plain}/complete", result={"artifacts": [artifact("native.md")]})
        wait_for(lambda: flow.state_of(plain) == "completed", 20, "the end")
        assert run("--socket", str(flow.socket_path), "--work", plain, "--root", str(tmp_path / "root")) == 0
        assert tree(tmp_path / "root") == {"native.md": ("file", "new\n")}


@pytest.mark.parametrize(("recommendation", "state"), [("retry", "failed"), ("escalate", "needs_input")])
def test_other_outputs_are_applied_where_the_caller_says_so(tmp_path: Path, recommendation: str, state: str) -> None:
    home, root = Home(tmp_path / "home"), tmp_path / "root"
    root.mkdir()
    said = message(artifact("review.md"), success=False, recommendation=recommendation)
    with Daemon(home, "checker") as checker, Daemon(home, "flow") as flow:
        wait_for(lambda: flow.knows("checker") and checker.knows("flow"), 20, "the two to know each other")
        work_id = flow.post("/v1/works", to="checker", text="check")["work_id"]
        wait_for(lambda: any(work["work_id"] == work_id for work in checker.get("/v1/works")["works"]), 20, "the work")
        checker.post("/v1/bridge/humaninloop", message=said, work_id=work_id)
        wait_for(lambda: flow.state_of(work_id) == state, 20, "the output")
        argv = ["--socket", str(flow.socket_path), "--work", work_id, "--root", str(root)]
        with pytest.raises(AnswerIsNo, match=state):
            run(*argv)
        assert run(*argv, "--recommendation", recommendation) == 0
        assert tree(root) == {"review.md": ("file", "new\n")}


def test_an_output_too_large_for_an_envelope_is_fetched(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    large = "x" * 1_500_000
    (tmp_path / "root").mkdir()
    with Daemon(home, "checker") as checker, Daemon(home, "flow") as flow:
        wait_for(lambda: flow.knows("checker") and checker.knows("flow"), 20, "the two to know each other")
        work_id = flow.post("/v1/works", to="checker", text="write")["work_id"]
        wait_for(lambda: any(work["work_id"] == work_id for work in checker.get("/v1/works")["works"]), 20, "the work")
        answer = message(artifact("large.txt", content=large))
        handed = checker.post("/v1/bridge/humaninloop", message=answer, work_id=work_id)
        assert [finding["rule"] for finding in handed["findings"]] == []
        wait_for(lambda: flow.state_of(work_id) == "completed", 20, "the end")
        for side in (flow, checker):
            assert run("--socket", str(side.socket_path), "--work", work_id, "--root", str(tmp_path / "root")) == 0
            assert (tmp_path / "root" / "large.txt").read_text() == large
            (tmp_path / "root" / "large.txt").unlink()
