"""The skill folder of ADR-007: found by a command, and its examples follow what SKILL.md says."""

import json
from pathlib import Path
from typing import Any

import pytest

from aghbus.cli.main import entry
from aghbus.protocol.formats.humaninloop.files import plan_files
from aghbus.protocol.formats.humaninloop.shape import check_input, check_output, kind_of


@pytest.fixture
def folder(capsys: pytest.CaptureFixture[str]) -> Path:
    assert entry(["bridge", "humaninloop", "skill"]) == 0
    return Path(capsys.readouterr().out.rstrip("\n"))


def example(folder: Path, name: str) -> Any:
    return json.loads((folder / "examples" / name).read_text())


def test_the_skill_is_described_in_the_form_of_a_skill_folder(folder: Path) -> None:
    assert folder.name == "agent-protocol"
    fence, name, description, end, *_ = (folder / "SKILL.md").read_text().split("\n")
    assert (fence, name, end) == ("---", "name: agent-protocol", "---")
    assert description.startswith("description: ")


def test_the_examples_are_valid_without_findings(folder: Path) -> None:
    asked, answer = example(folder, "input.json"), example(folder, "output.json")
    assert (kind_of(asked), kind_of(answer)) == ("input", "output")
    assert check_input(asked) == check_output(answer) == ()
    files = plan_files(answer, None, asked)
    assert files.findings == ()
    assert [file.path for file in files.files] == ["plan.md"]


def test_the_json_answer_has_the_path(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry(["-o", "json", "bridge", "humaninloop", "skill"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == str(folder)
