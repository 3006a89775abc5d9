"""From settings to adapters: the agent map, and the files named by settings."""

from pathlib import Path

import msgspec
import pytest

from aghbus.daemon.bridge.adapters import FormatAdapters, FormatFileError, configured_agents, find_problems
from aghbus.daemon.config.bridge_settings import AgentOsSettings, BridgeSettings, SacpSettings
from aghbus.daemon.config.settings import Settings
from aghbus.protocol.base.errors import InvalidRequest, NotFound
from aghbus.protocol.formats.registry import FORMATS, AdapterOptions, adapter_for


def settings(**tables: msgspec.Struct) -> Settings:
    return msgspec.structs.replace(Settings(name="ops", peer_id="ops"), **tables)


def test_every_format_has_its_adapter() -> None:
    formats = FormatAdapters(settings())
    assert [formats.get(name).name for name in FORMATS] == list(FORMATS)
    with pytest.raises(InvalidRequest) as caught:
        adapter_for("smoke", AdapterOptions())
    assert "sacp" in caught.value.hint
    with pytest.raises(NotFound):
        formats.get("smoke")


def test_the_last_equals_sign_of_an_entry_divides() -> None:
    assert configured_agents(settings(bridge=BridgeSettings(agents=("a=b=ops", "goal agent=goal")))) == {
        "a=b": "ops",
        "goal agent": "goal",
    }


def test_one_agent_with_two_peers_is_a_problem() -> None:
    (problem,) = find_problems(settings(bridge=BridgeSettings(agents=("a=ops", "a=worker"))))
    assert problem.key == "bridge.agents"
    assert list(find_problems(settings(bridge=BridgeSettings(agents=("a=ops", "b=ops"))))) == []


@pytest.mark.parametrize("text", ['["one", "two"]', "# known\none\n\ntwo\n"])
def test_a_manifest_is_a_list_or_lines(tmp_path: Path, text: str) -> None:
    file = tmp_path / "manifest"
    file.write_text(text)
    adapter = FormatAdapters(settings(agentos=AgentOsSettings(manifest=str(file)))).get("agentos")
    assert vars(adapter)["_options"].manifest == {"one", "two"}


@pytest.mark.parametrize("content", [b"[1, 2]", b"[", b"\xff", b"x" * 1_100_000, b'[["nested"]]'])
def test_an_invalid_manifest_is_a_problem_of_its_key(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "manifest"
    file.write_bytes(content)
    (problem,) = find_problems(settings(agentos=AgentOsSettings(manifest=str(file))))
    assert (problem.key, problem.origin) == ("agentos.manifest", f"file {file}")


def test_a_missing_file_and_a_bad_pattern_are_problems(tmp_path: Path) -> None:
    (problem,) = find_problems(settings(sacp=SacpSettings(guardrails=str(tmp_path / "none"))))
    assert problem.key == "sacp.guardrails"
    file = tmp_path / "patterns"
    file.write_text("ok: [0-9]{4}\nbad: (\n")
    (problem,) = find_problems(settings(sacp=SacpSettings(guardrails=str(file))))
    assert "line 2" in problem.rule


def test_formats_keep_their_adapters_when_a_new_file_is_invalid(tmp_path: Path) -> None:
    formats = FormatAdapters(settings())
    before = formats.get("sacp")
    with pytest.raises(FormatFileError):
        formats.reload(settings(sacp=SacpSettings(guardrails=str(tmp_path / "none"))))
    assert formats.get("sacp") is before
