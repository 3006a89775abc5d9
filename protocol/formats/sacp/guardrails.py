"""Guardrails on responses (seed section 9.1): the operator's patterns for content that must not be sent."""

from typing import Any, Final

import msgspec

from aghbus.protocol.base.errors import InvalidRequest
from aghbus.protocol.formats.attachments import compact
from aghbus.protocol.formats.common import warning
from aghbus.protocol.formats.model import Delivered, Finding
from aghbus.protocol.formats.sacp.matching import Matcher
from aghbus.protocol.formats.sacp.patterns import check_pattern

MAX_SCANNED_CHARACTERS: Final = 262_144  # characters of one message or one `data`; longer ones count as a hit
REDACTED: Final = "[withheld by a guardrail]"
_RULE: Final = "guardrail"  # of the findings
_TOO_LONG: Final = ""  # in place of a guardrail's name


class Guardrail(msgspec.Struct, frozen=True):
    """A pattern (a subset of Python's regular expressions, docs/adapters/sacp.md) and its name for findings."""

    name: str
    pattern: str


def read_guardrails(text: str) -> tuple[Guardrail, ...]:
    """The guardrails in a file of `name: pattern` lines; blank lines and lines that begin with `#` are skipped.

    Raises InvalidRequest with the line number and the error of the pattern.
    """
    made: list[Guardrail] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, pattern = (part.strip() for part in line.partition(":"))
        if not (name and colon and pattern):
            raise InvalidRequest(f"line {number}: is not `name: pattern`", hint="card: \\d{4}-\\d{4}-\\d{4}-\\d{4}")
        if any(name == earlier.name for earlier in made):
            raise InvalidRequest(f"line {number}: the name {name} is used twice", hint="give each pattern its own name")
        try:
            check_pattern(pattern)
        except InvalidRequest as fault:
            raise InvalidRequest(f"line {number}: {fault.message}", hint=fault.hint) from None
        made.append(Guardrail(name, pattern))
    return tuple(made)


class GuardrailSet:
    """The compiled guardrails of one peer. Raises InvalidRequest for an invalid pattern."""

    def __init__(self, guardrails: tuple[Guardrail, ...]) -> None:
        self._matchers = tuple((guardrail.name, Matcher(guardrail.pattern)) for guardrail in guardrails)

    def apply(self, response: dict[str, Any]) -> tuple[dict[str, Any], tuple[Finding, ...]]:
        """The redacted `response`, and a warning for each match.

        A match in `message` sets the status to failure and redacts the message. A match in `data` of a failure redacts the
        message, but not `data`, which the orchestrator needs. With the message, `thought` and `next_step_hint` are emptied if
        they match, since the same people see them.
        """
        if not self._matchers:
            return response, ()
        in_message = self._hits(response["message"])
        failure = bool(in_message) or response["status"] == "failure"
        in_data = self._hits_in(response["data"]) if failure else ()
        if not in_message and not in_data:
            return response, ()
        guarded = {**response, "status": "failure", "message": REDACTED}
        findings = [
            _finding("/message", name, "the status is set to failure and the message is redacted")
            for name in in_message
        ]
        findings += [_finding("/data", name, "the message of this failure is redacted") for name in in_data]
        for field in ("thought", "next_step_hint"):
            for name in self._hits(response.get(field, "")):
                guarded[field] = ""
                findings.append(_finding(f"/{field}", name, "is emptied along with the message"))
        return guarded, tuple(findings)

    def _hits(self, text: str) -> tuple[str, ...]:
        if len(text) > MAX_SCANNED_CHARACTERS:
            return (_TOO_LONG,)
        return tuple(name for name, matcher in self._matchers if matcher.found_in(text))

    def _hits_in(self, data: dict[str, Any]) -> tuple[str, ...]:
        """The patterns that match a key or scalar of `data`, or its compact JSON (so also across a key and its value)."""
        whole = compact(data)
        if len(whole) > MAX_SCANNED_CHARACTERS:
            return (_TOO_LONG,)
        texts = (whole, *_scalars(data))
        return tuple(name for name, matcher in self._matchers if any(map(matcher.found_in, texts)))


def is_withheld(delivered: Delivered) -> bool:
    """Whether a guardrail changed the delivered response."""
    return any(finding.rule == _RULE for finding in delivered.findings)


def _finding(path: str, name: str, what: str) -> Finding:
    """A warning; it never quotes the match or its key."""
    if name == _TOO_LONG:
        return warning(
            path, _RULE, f"is longer than {MAX_SCANNED_CHARACTERS} characters, the limit for scanning: {what}"
        )
    return warning(path, _RULE, f"matches the guardrail {name}: {what}")


def _scalars(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for key, item in value.items() for text in (key, *_scalars(item))]
    if isinstance(value, list):
        return [text for item in value for text in _scalars(item)]
    return [value if isinstance(value, str) else compact(value)]
