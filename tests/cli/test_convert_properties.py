"""`aghctl convert` for any input: no line stops it, and its output is valid for a receiver."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.cli.app.registry import PROGRAM
from aghbus.cli.commands.convert import converter_of
from aghbus.cli.convert.loss import lost_members
from aghbus.protocol.agh.envelope import parse as parse_envelope
from aghbus.protocol.formats.model import Finding
from tests.support.convert_cases import FOREIGN, INPUT, NOW, OUTPUT, RESPONSE, envelope, examples, trace

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
WHOLE = [value for format in FOREIGN for value in examples(format)]
WHOLE += [RESPONSE, INPUT, OUTPUT, envelope(), trace("completed"), trace("working"), trace("failed", to=None)]


def holes(value: Any) -> list[tuple[Any, ...]]:
    """Paths to every member and item of a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(key, *path) for key, item in inner for path in [(), *holes(item)]]


@st.composite
def bent(draw: st.DrawFn) -> bytes:
    """A message of some format with something else in one place: what a sloppy agent writes."""
    value = json.loads(json.dumps(draw(st.sampled_from(WHOLE))))
    *above, last = draw(st.sampled_from(holes(value)))
    place = value
    for key in above:
        place = place[key]
    if isinstance(place, dict) and draw(st.booleans()):
        del place[last]
    else:
        place[last] = draw(json_values)
    return json.dumps(value).encode()


lines = st.one_of(
    st.binary(max_size=60),
    json_values.map(lambda value: json.dumps(value).encode()),
    st.sampled_from(WHOLE).map(lambda value: json.dumps(value).encode()),
    bent(),
)


def all_results(source: str, target: str, raws: list[bytes]) -> list[Any]:
    words = ["--from", source, "--to", target, "--now", str(NOW)]
    converter = converter_of(PROGRAM.parse(["convert", *words])[1])
    return [converter.convert(raw) for raw in raws]


@pytest.mark.parametrize("source", ["agh", *FOREIGN])
@given(st.lists(lines, min_size=1, max_size=4), st.sampled_from(["agh", *FOREIGN]))
def test_no_line_stops_the_conversion_and_an_error_has_no_output(source: str, raws: list[bytes], target: str) -> None:
    for result in all_results(source, target, raws):
        json.dumps(result.messages).encode()
        assert result.messages or result.findings
        assert all(isinstance(finding, Finding) for finding in result.findings)
        assert not (result.failed and result.messages)


@pytest.mark.parametrize("source", FOREIGN)
@given(st.lists(lines, min_size=1, max_size=4))
def test_every_envelope_is_valid_for_a_receiver(source: str, raws: list[bytes]) -> None:
    for result in all_results(source, "agh", raws):
        for message in result.messages:
            parse_envelope(json.dumps(message).encode(), NOW)


@pytest.mark.parametrize("format", FOREIGN)
@given(st.lists(lines, min_size=1, max_size=3))
def test_a_valid_message_is_unchanged_or_has_findings(format: str, raws: list[bytes]) -> None:
    changing = {"overwritten", "fallback", "surrounding_text", "not_utf8", "repeated"}
    for raw, result in zip(raws, all_results(format, format, raws), strict=True):
        if result.failed or changing & {finding.rule for finding in result.findings}:
            continue
        assert json.dumps(result.messages, sort_keys=True) == json.dumps([json.loads(raw)], sort_keys=True)


@given(json_values)
def test_a_copy_loses_nothing_and_an_empty_message_everything(value: Any) -> None:
    message = {"member": value, "word": "unmistakable"}
    assert lost_members("sacp", message, [message], has_state=True) == []
    paths = {finding.path for finding in lost_members("sacp", message, [{}], has_state=True)}
    assert "/word" in paths
