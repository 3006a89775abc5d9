"""Suggestions for misspelt names."""

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most similar to `name`; None when none is similar."""
    import difflib  # slow to load, and rarely needed

    near = difflib.get_close_matches(name, sorted(known), n=1)
    return near[0] if near else None
