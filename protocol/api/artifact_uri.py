"""Names of artifacts: content beside the envelopes, under `agh://artifacts/<work_id>/<name>`.

Work ids and names share one grammar that is safe in a URI, in a subject and as a file name: no path leads out of it.
"""

import re
from typing import Final

URI_PREFIX: Final = "agh://artifacts/"  # the form of the seed's examples of artifact references

PART_RULE: Final = "1 to 128 characters of A-Z, a-z, 0-9, '.', '_' and '-', the first a letter, a digit or '_'"
PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


def is_part(text: str) -> bool:
    """Whether `text` can be the work id or the name of an artifact."""
    return PART.fullmatch(text) is not None


def artifact_uri(work_id: str, name: str) -> str:
    """`agh://artifacts/<work_id>/<name>`; both parts must obey the grammar."""
    return f"{URI_PREFIX}{work_id}/{name}"


def parse_uri(uri: str) -> tuple[str, str] | None:
    """Work id and name of an artifact's URI; None for anything else."""
    work_id, slash, name = uri.removeprefix(URI_PREFIX).partition("/")
    if not uri.startswith(URI_PREFIX) or not slash or not is_part(work_id) or not is_part(name):
        return None
    return work_id, name
