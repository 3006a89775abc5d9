"""The standing of a sender: which names are known, and that a key alone makes none of them verified."""

from typing import Any

import pytest

from aghbus.daemon.state.presence import KNOWN_AFTER_MS
from aghbus.daemon.state.standing import SHARES, Standing, allowance
from aghbus.host.key_files import generate_key
from aghbus.protocol.agh.bodies import PeerCard
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.engine.memory.trust import Origin, Rule
from tests.support.makers import rows
from tests.support.receiving import Stepped
from tests.support.wiring import parts_of

KEY = generate_key()
HANDLE = f"peer@{KEY.fingerprint}"


@pytest.mark.parametrize(("standing", "used"), [("unknown", 50), ("known", 75), ("verified", 100)])
def test_a_resource_is_refused_at_the_share_of_the_standing(standing: Standing, used: int) -> None:
    assert allowance(100, standing) == used


def test_shares_decrease_from_verified_to_known_to_unknown_senders() -> None:
    assert SHARES["verified"] == 1 > SHARES["known"] > SHARES["unknown"] > 0


async def test_a_name_is_known_some_minutes_after_its_first_greet(store: Store) -> None:
    clock = Stepped()
    parts = parts_of(store, clock)
    parts.presence.observe("local", "default", PeerCard(peer_id="peer"), "unverified", clock.millis())
    assert parts.standings.of("peer", "unverified") == "unknown"
    clock.advance(KNOWN_AFTER_MS // 1000 - 1)
    parts.presence.observe("local", "default", PeerCard(peer_id="peer"), "unverified", clock.millis())
    assert parts.standings.of("peer", "unverified") == "unknown"
    clock.advance(1)
    assert parts.standings.of("peer", "unverified") == "known"
    assert parts.standings.of("other", "unverified") == "unknown"


async def test_a_fresh_key_makes_no_name_verified(store: Store) -> None:
    parts = parts_of(store)
    assert parts.standings.of(HANDLE, "verified") == "known"
    assert parts.standings.of(HANDLE, None) == "unknown"
    parts.standings.engage([HANDLE])
    assert parts.standings.of(HANDLE, "verified") == "verified"
    assert parts.standings.of(HANDLE, None) == "known"


@pytest.mark.parametrize(
    "trust",
    [
        {"allow": (KEY.key_id,)},
        {"pins": (f"peer={KEY.key_id}",)},
        {"may_open_work": (f"default={HANDLE}",)},
        {"may_talk": (f"default={KEY.key_id}",)},
    ],
)
async def test_a_handle_that_a_rule_names_is_known(store: Store, trust: dict[str, Any]) -> None:
    standings = parts_of(store, **trust).standings
    assert standings.of(HANDLE, "verified") == "verified"
    assert standings.of(f"peer@{generate_key().fingerprint}", "verified") == "known"


@pytest.mark.parametrize("who", ["*", "*@*"])
async def test_rules_for_everybody_make_nobody_known(store: Store, who: str) -> None:
    standings = parts_of(store, may_talk=(f"default={who}",)).standings
    assert standings.of("peer", "unverified") == "unknown"
    assert standings.of(HANDLE, "verified") == "known"


@pytest.mark.parametrize(("origin", "standing"), [("operator", "verified"), ("first_use", "known")])
async def test_pins_of_the_user_count_and_those_of_first_use_do_not(
    store: Store, origin: Origin, standing: Standing
) -> None:
    rule = Rule("pin", "peer", KEY.key_id, origin, 1)
    await store.write(lambda tx: tx.memory.trust.put(tx, rule))
    assert parts_of(store).standings.of(HANDLE, "verified") == standing


async def test_open_work_peers_stay_known_except_unanswered_openers(store: Store) -> None:
    """Engaged is who our agent sent to; at a start the store says so."""

    def open_works(tx: Transaction) -> None:
        works = [("w1", "me", "asked", "initiator", "submitted"), ("w2", "taken", "me", "target", "working")]
        works += [("w3", "intruder", "me", "target", "submitted"), ("w4", "me", "done", "initiator", "completed")]
        for number, (work_id, initiator, target, role, state) in enumerate(works):
            tx.db.execute(
                "INSERT INTO works (workspace_id, channel, work_id, surface, container, initiator, target, role, state, trust,"
                " opening_id, advanced, opened_seq, opened_ms, last_seq, updated_ms, text)"
                " VALUES ('local', 'default', ?, 'thread', 't', ?, ?, ?, ?, 'unverified', 'm', 0, 1, 1, ?, 1, '')",
                (work_id, initiator, target, role, state, number),
            )

    await store.write(open_works)
    assert (await rows(store, "SELECT count(*) FROM works"))[0] == (4,)
    parts = parts_of(store)
    await parts.standings.load(store.reader)
    known = [name for name in ("asked", "taken", "intruder", "done") if parts.standings.is_known(name)]
    assert known == ["asked", "taken"]
