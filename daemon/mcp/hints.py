"""Hints of the local API name commands of `aghctl`. A model has tools in their place, and perhaps no shell."""

import re
from typing import Final

_TOOLS: Final = {
    "peers": "`peers`",
    "work list": "`work`",
    "work show": "`work`",
    "work say": "`say` with its work_id",
    "work accept": "`step` accept",
    "work reject": "`step` reject",
    "work cancel": "`step` cancel",
    "inbox list": "`inbox`",
    "inbox next": "`inbox`",
    "messages list": "`inbox` with text",
}
_COMMAND: Final = re.compile(r"`(aghctl )?(([a-z-]+)(?: [a-z-]+)?)[^`]*`")


def for_model(hint: str) -> str:
    """`hint` with tools in place of commands; what no tool does is left to the user."""
    told = _COMMAND.sub(lambda found: _TOOLS.get(found[2]) or _TOOLS.get(found[3]) or found[0], hint)
    return f"{told}; `aghctl` is for your user" if "`aghctl" in told else told
