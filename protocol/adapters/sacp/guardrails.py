"""Guardrails on responses (seed section 9.1): what must not be shown, by patterns that the operator names."""

from typing import Any, Final

import msgspec

from aghbus.protocol.adapters.attachments import compact
from aghbus.protocol.adapters.common import warning
from aghbus.protocol.adapters.model import Finding
from aghbus.protocol.adapters.sacp.matching import Matcher
from aghbus.protocol.adapters.sacp.patterns import check_pattern
from aghbus.protocol.errors import InvalidRequest

MAX_SCANNED_CHARACTERS: Final = 262_144  # characters of one message or one `data`, ours; longer ones count as a hit
REDACTED: Final = "[withheld by a guardrail]"
_TOO_LONG: Final = ""  # in place of a guardrail's name


class Guardrail(msgspec.Struct, frozen=True):
    """A pattern (the subset of Python's regular expressions in docs/adapters/sacp.md) under the name that findings call it by."""

    name: str
    pattern: str


def read_guardrails(text: str) -> tuple[Guardrail, ...]:
    """The guardrails of a file: a line is `name: pattern`; blank lines and lines that begin with `#` say nothing.

    Raises InvalidRequest naming the line, and the fault of the pattern.
    """
    made: list[Guardrail] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, pattern = (part.strip() for part in line.partition(":"))
        if not (name and colon and pattern):
            raise InvalidRequest(f"line {number}: is not `name: pattern`", hint="card: \\d{4}-\\d{4}-\\d{4}-\\d{4}")
        if any(name == earlier.name for earlier in made):
            raise InvalidRequest(f"line {number}: the name {name} is taken", hint="give each pattern its own name")
        try:
            check_pattern(pattern)
        except InvalidRequest as fault:
            raise InvalidRequest(f"line {number}: {fault.message}", hint=fault.hint) from None
        made.append(Guardrail(name, pattern))
    return tuple(made)


class GuardrailSet:
    """The guardrails of one peer, compiled. Raises InvalidRequest for a pattern that cannot be taken."""

    def __init__(self, guardrails: tuple[Guardrail, ...]) -> None:
        self._matchers = tuple((guardrail.name, Matcher(guardrail.pattern)) for guardrail in guardrails)

    def apply(self, response: dict[str, Any]) -> tuple[dict[str, Any], tuple[Finding, ...]]:
        """`response` as it may travel, and a warning for each rule that a pattern set off.

        A hit in `message` makes the status failure and withholds the message. A hit in `data` of a failure withholds the
        message and leaves `data` for the orchestrator. Where the message is withheld, so are `thought` and
        `next_step_hint` when they hold a hit, since the same people see them.
        """
        if not self._matchers:
            return response, ()
        in_message = self._hits(response["message"])
        failure = bool(in_message) or response["status"] == "failure"
        in_data = self._hits_in(response["data"]) if failure else ()
        if not in_message and not in_data:
            return response, ()
        guarded = {**response, "status": "failure", "message": REDACTED}
        findings = [_finding("/message", name, "the status is failure and the message withheld") for name in in_message]
        findings += [_finding("/data", name, "the message of this failure is withheld") for name in in_data]
        for field in ("thought", "next_step_hint"):
            for name in self._hits(response.get(field, "")):
                guarded[field] = ""
                findings.append(_finding(f"/{field}", name, "is withheld along with the message"))
        return guarded, tuple(findings)

    def _hits(self, text: str) -> tuple[str, ...]:
        if len(text) > MAX_SCANNED_CHARACTERS:
            return (_TOO_LONG,)
        return tuple(name for name, matcher in self._matchers if matcher.found_in(text))

    def _hits_in(self, data: dict[str, Any]) -> tuple[str, ...]:
        """Patterns found in a key, a string or a number of `data`, or in its compact JSON (so across a key and its value)."""
        whole = compact(data)
        if len(whole) > MAX_SCANNED_CHARACTERS:
            return (_TOO_LONG,)
        texts = (whole, *_scalars(data))
        return tuple(name for name, matcher in self._matchers if any(map(matcher.found_in, texts)))


def _finding(path: str, name: str, what: str) -> Finding:
    """Never quotes what was found, nor the key that it was found under."""
    if name == _TOO_LONG:
        return warning(
            path, "guardrail", f"is longer than the {MAX_SCANNED_CHARACTERS} characters that are scanned: {what}"
        )
    return warning(path, "guardrail", f"holds what the guardrail {name} watches for: {what}")


def _scalars(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for key, item in value.items() for text in (key, *_scalars(item))]
    if isinstance(value, list):
        return [text for item in value for text in _scalars(item)]
    return [value if isinstance(value, str) else compact(value)]
