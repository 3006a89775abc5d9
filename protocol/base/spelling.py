"""Suggestions for misspelt names."""

from collections.abc import Iterable

NEAR = 3
"""Peers that are suggested for one that is not known."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most similar to `name`; None when none is similar."""
    import difflib  # slow to load, and rarely needed

    near = difflib.get_close_matches(name, sorted(known), n=1)
    return near[0] if near else None


def near_peers(name: str, known: Iterable[str]) -> list[str]:
    """Up to NEAR of the peer ids `known`: those that agree with `name` up to the @, then those with similar nicknames."""
    import difflib  # slow to load, and rarely needed

    known, nickname = [*known], name.partition("@")[0]
    same = [peer for peer in known if peer.partition("@")[0] == nickname]
    nicknames = {peer.partition("@")[0]: peer for peer in known}
    similar = [nicknames[found] for found in difflib.get_close_matches(nickname, nicknames, n=NEAR)]
    return [*dict.fromkeys([*same, *similar])][:NEAR]
