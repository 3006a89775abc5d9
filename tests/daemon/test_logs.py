"""Log lines: one record is one line, no value forges another, no secret is written, noise is bounded."""

import ast
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.daemon.base.logs import (
    MAX_LIMITER_KEYS,
    EventLimiter,
    JsonFormatter,
    TextFormatter,
    configure,
    event,
    set_level,
    verbosity_level,
)

LOG = logging.getLogger("aghbus.test")
SECRET = "hunter2"


class Sink:
    """A stream that logs go to; `lines` and `objects` read what is there so far."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    def lines(self) -> list[str]:
        """What was written, cut at line feeds only."""
        return self.stream.getvalue().split("\n")[:-1]

    def objects(self) -> list[dict[str, Any]]:
        """What was written, as JSON lines."""
        return [json.loads(line) for line in self.lines()]


@pytest.fixture(autouse=True)
def untouched_root() -> Iterator[None]:
    """Logging as it was before the test, for everybody else."""
    root, ours = logging.getLogger(), logging.getLogger("aghbus")
    before = (root.handlers[:], root.level, ours.level)
    root.handlers.clear()
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


@pytest.fixture
def text() -> Sink:
    """A sink for text at debug."""
    sink = Sink()
    configure("debug", "text", sink.stream)
    return sink


@pytest.fixture
def objects() -> Sink:
    """A sink for JSON at debug."""
    sink = Sink()
    configure("debug", "json", sink.stream)
    return sink


def test_a_text_line_has_time_level_logger_message_and_fields(text: Sink) -> None:
    event(LOG, logging.WARNING, "link down", url="nats://h:1", tries=3, up=False, last=None, why="no route to host")
    (line,) = text.lines()
    time, rest = line.split(" ", 1)
    assert rest == 'warning aghbus.test link down url=nats://h:1 tries=3 up=false last=null why="no route to host"'
    assert len(time) == len("2026-01-31T12:00:00.123Z")
    assert time.endswith("Z")


def test_a_json_line_has_the_same_as_members(objects: Sink) -> None:
    event(LOG, logging.INFO, "stored", seq=7, peers=["a", "b"], share=0.5, bad=float("nan"), raw=b"\xffx")
    (line,) = objects.objects()
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "aghbus.test",
        "msg": "stored",
        "seq": 7,
        "peers": ["a", "b"],
        "share": 0.5,
        "bad": "nan",
        "raw": "\\xffx",
    }


def test_a_field_cannot_take_the_place_of_a_fixed_member(objects: Sink) -> None:
    event(LOG, logging.INFO, "real", msg="forged", level="error")
    (line,) = objects.objects()
    assert (line["msg"], line["level"], line["field_msg"], line["field_level"]) == ("real", "info", "forged", "error")


def test_plain_records_of_other_modules_come_through(text: Sink) -> None:
    logging.getLogger("aghbus.link").info("link up server=%s\nforged line", "h")
    (line,) = text.lines()
    assert line.endswith("info aghbus.link link up server=h\\nforged line")


@given(st.text(), st.text(min_size=1))
def test_no_value_breaks_out_of_its_line_or_moves_a_cursor(value: str, message: str) -> None:
    sink = Sink()
    configure("debug", "text", sink.stream)
    event(LOG, logging.INFO, message, value=value)
    (line,) = sink.lines()
    assert not [c for c in line if c < " " or "\x7f" <= c <= "\x9f" or c in "\u2028\u2029\u202e\u200f\u2066"]
    line.encode()


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126)))
def test_a_printable_value_can_be_read_back(value: str) -> None:
    sink = Sink()
    configure("debug", "text", sink.stream)
    event(LOG, logging.INFO, "x", value=value)
    written = sink.lines()[0].split(" x value=", 1)[1]
    quoted = len(written) > 1 and written[0] == written[-1] == '"'
    assert (re.sub(r"\\(.)", r"\1", written[1:-1]) if quoted else written) == value


@given(st.text())
def test_a_json_line_is_ascii_without_controls_and_gives_the_value_back(value: str) -> None:
    sink = Sink()
    configure("debug", "json", sink.stream)
    event(LOG, logging.INFO, "x", value=value)
    (line,) = sink.lines()
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["value"] == value


@pytest.mark.parametrize("name", ["token", "nats_password", "passwd", "client_secret", "seed", "Authorization"])
@pytest.mark.parametrize("form", ["text", "json"])
def test_fields_named_like_secrets_are_masked_also_inside_others(form: str, name: str) -> None:
    sink = Sink()
    configure("debug", form, sink.stream)
    event(LOG, logging.ERROR, "x", **{name: SECRET}, nested={"deep": [{name: SECRET}]})
    assert SECRET not in sink.stream.getvalue()
    assert "***" in sink.stream.getvalue()


def test_credentials_in_urls_are_masked_wherever_they_stand(text: Sink) -> None:
    url = f"nats://user:{SECRET}@host:4222"
    LOG.warning("cannot connect to %s", url)
    event(LOG, logging.WARNING, "x", url=url, error=OSError(f"refused: {url}"))
    try:
        raise OSError(url)
    except OSError:
        LOG.exception("failed")
    assert SECRET not in text.stream.getvalue()
    assert text.stream.getvalue().count("nats://***@host:4222") == 4


def test_fields_that_only_look_secret_are_shown(objects: Sink) -> None:
    event(LOG, logging.INFO, "x", route_token="ab12", token_file="/etc/t")
    assert objects.objects()[0]["route_token"] == "ab12"
    assert objects.objects()[0]["token_file"] == "/etc/t"


def test_a_traceback_stays_behind_its_bar() -> None:
    sinks = {"text": Sink(), "json": Sink()}
    for form, sink in sinks.items():
        configure("debug", form, sink.stream)
        try:
            raise ValueError("first\n2026-01-01T00:00:00.000Z error forged\x1b[2J")
        except ValueError:
            LOG.exception("it broke")
    first, *others = sinks["text"].lines()
    assert first.endswith("error aghbus.test it broke")
    assert all(line.startswith("    | ") for line in others)
    assert "\x1b" not in sinks["text"].stream.getvalue()
    (line,) = sinks["json"].objects()
    assert "ValueError: first" in line["traceback"]


def test_a_huge_field_is_cut(text: Sink) -> None:
    event(LOG, logging.INFO, "x", body="y" * 1_000_000)
    (line,) = text.lines()
    assert len(line) < 10_000
    assert "more" in line


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_a_broken_format_string_costs_no_line(formatter: logging.Formatter) -> None:
    record = logging.LogRecord("aghbus.test", logging.WARNING, __file__, 1, "%d items", ("three",), None)
    assert "%d items" in formatter.format(record)


def test_other_libraries_stay_quiet_until_debug() -> None:
    sink = Sink()
    configure("info", "text", sink.stream)
    other = logging.getLogger("somebody.else")
    other.info("chatter")
    LOG.info("ours")
    assert [line.rsplit(" ", 1)[1] for line in sink.lines()] == ["ours"]
    set_level("error")
    other.warning("w")
    LOG.warning("w")
    assert len(sink.lines()) == 1
    set_level("debug")
    other.debug("now")
    assert sink.lines()[-1].endswith("somebody.else now")


def test_configuring_again_replaces_the_handler(text: Sink) -> None:
    second = Sink()
    configure("info", "json", second.stream)
    LOG.info("once")
    assert (text.lines(), len(second.objects())) == ([], 1)


def test_verbosity() -> None:
    assert [verbosity_level(count) for count in range(4)] == [None, "info", "debug", "debug"]


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_noise_is_bounded_in_a_minute_and_then_counted(objects: Sink) -> None:
    clock = Clock()
    limiter = EventLimiter(LOG, 2, clock)
    let_through = [limiter.event(logging.WARNING, "drop", "dropped", n=n) for n in range(10)]
    assert let_through == [True, True] + [False] * 8
    limiter.event(logging.WARNING, "other", "another key")
    clock.now += 59
    limiter.flush()
    assert len(objects.lines()) == 3
    clock.now += 1
    assert limiter.event(logging.WARNING, "drop", "dropped", n=10)
    *_, summary, again = objects.objects()
    assert (summary["suppressed"], summary["event"], summary["level"], again["n"]) == (8, "drop", "warning", 10)


def test_flush_writes_due_lines_even_without_another_event(objects: Sink) -> None:
    clock = Clock()
    limiter = EventLimiter(LOG, 1, clock)
    for _ in range(4):
        limiter.event(logging.INFO, "k", "m")
    limiter.flush()
    assert len(objects.lines()) == 1
    limiter.flush(everything=True)
    assert objects.objects()[-1]["suppressed"] == 3
    limiter.flush(everything=True)
    assert len(objects.lines()) == 2


def test_a_flood_of_keys_is_bounded_and_loses_no_count(objects: Sink) -> None:
    limiter = EventLimiter(LOG, 1, Clock())
    limiter.event(logging.INFO, "first", "m")
    limiter.event(logging.INFO, "first", "m")
    for n in range(MAX_LIMITER_KEYS):
        limiter.event(logging.INFO, f"key-{n}", "m")
    summaries = [line for line in objects.objects() if "suppressed" in line]
    assert [(line["event"], line["suppressed"]) for line in summaries] == [("first", 1)]


def test_messages_of_the_daemon_are_fixed_texts_with_fields() -> None:
    """A value inside the text of a message is no field of a JSON log."""
    calls = (
        (file, call)
        for file in (Path(__file__).parent.parent.parent / "daemon").rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call) and file.name != "logs.py"
    )
    texts = [
        (f"{file.name}:{call.lineno}", call.args)
        for file, call in calls
        if isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id in ("_log", "log", "logger")
        and call.func.attr in ("debug", "info", "warning", "error", "exception")
    ]
    assert texts
    assert [place for place, args in texts if len(args) != 1 or not isinstance(args[0], ast.Constant)] == []
    assert [place for place, args in texts if "%" in ast.unparse(args[0]) or "=" in ast.unparse(args[0])] == []
