"""Why a work does not move: code and sentence for what is known of it."""

import re
from pathlib import Path
from typing import Any, Final, get_args

import pytest

from aghbus.protocol.api.wait_reason import Facts, InboxMessage, OwnMessage, StoredFacts, spoken, wait_reason
from aghbus.protocol.api.works import WaitCode, WaitReason, Work

PAGE: Final = Path(__file__).parents[2] / "docs" / "why.md"
NOW: Final = 1_795_537_800_000  # 2026-11-24T16:30:00Z
MINUTE: Final = 60_000
AWAY: Final = (NOW - 2 * MINUTE, "connection refused")
EXPIRES: Final = "expires 2026-11-25T16:26:00Z"


def work(role: str, state: str, **fields: Any) -> Work:
    values: dict[str, Any] = {
        "work_id": "work_1",
        "workspace_id": "ws",
        "channel": "default",
        "surface": "thread",
        "thread_id": "thread_abc",
        "direct_id": None,
        "initiator": "ops",
        "target": "patch-worker",
        "role": role,
        "state": state,
        "trust": "unverified",
        "text": "do it",
        "opening_id": "msg_1",
        "opened_ms": NOW - 4 * MINUTE,
        "updated_ms": NOW - 4 * MINUTE,
        "last_seq": 1,
        "message": None,
        "result": None,
        "artifacts": None,
    }
    return Work(**{"capability": None, "first_id": None, **values, **fields})


def sent(state: str, **fields: Any) -> OwnMessage:
    values: dict[str, Any] = {
        "state": state,
        "tries": 1,
        "sent_ms": NOW - 4 * MINUTE,
        "published_ms": None if state == "queued" else NOW - 3 * MINUTE,
        "expires_at": NOW // 1000 + 86_400 - 240,
        "detail": None,
        "outstanding": state in ("queued", "published"),
        "unsubscribed": False,
    }
    return OwnMessage(**{**values, **fields})


def received(state: str | None, **fields: Any) -> InboxMessage:
    values: dict[str, Any] = {
        "seq": 7,
        "received_ms": NOW - 4 * MINUTE,
        "state": state,
        "attempts": 0,
        "available_ms": 0,
        "lease_until_ms": None,
        "last_error": None,
    }
    return InboxMessage(**{**values, **fields})


STORED: Final = {"begun_ms", "reported_ms", "due_ms", "waits_for", "chain", "next", "passed_on", "opening", "last"}


def explained(role: str, state: str, **given: Any) -> WaitReason | None:
    """The reason for a work whose other participant is present, and about which nothing else is known than `given`."""
    stored: dict[str, Any] = dict.fromkeys(STORED)
    stored |= {name: given.pop(name) for name in STORED & given.keys()}
    message = given.pop("message", None)
    facts: dict[str, Any] = {"seen_ms": NOW - 10_000, "present": True, **given}
    return wait_reason(
        Facts(now_ms=NOW, work=work(role, state, message=message), stored=StoredFacts(**stored), **facts)
    )


UNSEEN: Final = {"seen_ms": None, "present": False}
GONE: Final = {"seen_ms": NOW - 10 * MINUTE, "present": False}
BEGUN: Final = {"opening": sent("receipted"), "begun_ms": NOW - 4 * MINUTE, "reported_ms": NOW - 3 * MINUTE}
TAKEN: Final = {"opening": received("acked"), "begun_ms": NOW - 4 * MINUTE, "reported_ms": NOW - 3 * MINUTE}

# role, state, what is known, code, sentence
TABLE: Final[list[tuple[str, str, dict[str, Any], str, str]]] = [
    (
        *("initiator", "submitted", {"opening": sent("queued"), "link_down": AWAY, **UNSEEN}, "broker_away"),
        f"queued 4m ago; the broker is away since 2026-11-24T16:28:00Z (connection refused); {EXPIRES}",
    ),
    (
        *(
            "initiator",
            "submitted",
            {"opening": sent("published"), **UNSEEN, "near": ("patch-worker",)},
            "unknown_peer",
        ),
        "published 4m ago; no peer patch-worker was ever seen on channel default (did you mean patch-worker?); "
        + EXPIRES,
    ),
    (
        *("initiator", "submitted", {"opening": sent("queued", unsubscribed=True), **GONE}, "peer_away"),
        f"queued 4m ago; patch-worker was last seen 10m ago; nobody subscribes there; {EXPIRES}",
    ),
    (
        *("initiator", "submitted", {"opening": sent("queued", unsubscribed=True)}, "no_subscriber"),
        f"queued 4m ago; nobody subscribes there, though patch-worker was seen 10s ago; {EXPIRES}",
    ),
    (
        *("initiator", "submitted", {"opening": sent("queued"), "queue": "the stream is full"}, "queued"),
        f"queued 4m ago; the stream is full; {EXPIRES}",
    ),
    (
        *("initiator", "submitted", {"opening": sent("published", tries=3), "due_ms": NOW + 3 * MINUTE}, "unanswered"),
        f"published 4m ago; patch-worker was seen 10s ago, and has not answered after 3 tries; {EXPIRES}; deadline in 3m",
    ),
    (
        *("initiator", "submitted", {"opening": sent("receipted"), "due_ms": NOW + 3 * MINUTE}, "not_accepted"),
        "delivered at 2026-11-24T16:27:00Z, not accepted: no worker of patch-worker has taken it; deadline in 3m",
    ),
    (
        *("initiator", "submitted", {"opening": sent("receipted"), "chain": ("run_1", "test")}, "not_accepted"),
        "delivered at 2026-11-24T16:27:00Z, not accepted: no worker of patch-worker has taken it; chain run run_1 waits for it",
    ),
    (
        *("initiator", "submitted", {"opening": sent("receipted"), "waits_for": "admission"}, "waits_for_admission"),
        "waits at patch-worker for admission",
    ),
    (
        *("initiator", "submitted", {"opening": sent("receipted"), "waits_for": "release"}, "held"),
        "held at patch-worker: it may have been carried out before a restore of the store there",
    ),
    (
        *("initiator", "submitted", {"opening": sent("receipted"), "waits_for": "worker"}, "not_accepted"),
        "delivered at 2026-11-24T16:27:00Z, not accepted: no worker of patch-worker has taken it",
    ),
    (
        *("initiator", "working", BEGUN, "working"),
        "patch-worker has had it since 2026-11-24T16:26:00Z; its last report was 3m ago",
    ),
    (
        *("initiator", "working", {**BEGUN, **GONE}, "peer_away"),
        "patch-worker has had it since 2026-11-24T16:26:00Z; its last report was 3m ago; patch-worker was last seen 10m ago",
    ),
    (
        *("initiator", "working", {**BEGUN, "link_down": AWAY}, "broker_away"),
        "the broker is away since 2026-11-24T16:28:00Z (connection refused): nothing of patch-worker can arrive",
    ),
    (
        *("initiator", "working", {**BEGUN, "last": sent("queued", unsubscribed=True)}, "no_subscriber"),
        f"our last message was queued 4m ago; nobody subscribes there, though patch-worker was seen 10s ago; {EXPIRES}",
    ),
    (
        *("initiator", "working", {**BEGUN, "last": sent("refused", detail="it came too late")}, "not_delivered"),
        "our last message is refused: “it came too late”",
    ),
    (
        *("initiator", "working", {**BEGUN, "held_back": "msg_2 is held back until msg_1 has come"}, "held_back"),
        "msg_2 is held back until msg_1 has come",
    ),
    (
        *("initiator", "needs_input", {**BEGUN, "message": "Which branch?"}, "asks"),
        "patch-worker asks since 2026-11-24T16:27:00Z: “Which branch?”",
    ),
    (
        *("initiator", "needs_input", {**BEGUN, "message": "Which?", "chain": ("run_1", "test")}, "asks_chain"),
        "patch-worker asks chain run run_1 since 2026-11-24T16:27:00Z: “Which?”",
    ),
    (
        *("initiator", "needs_input", {**BEGUN, "message": "Which?", "passed_on": ("work_2", "desk")}, "asks_further"),
        "patch-worker asks since 2026-11-24T16:27:00Z; desk was asked in work_2: “Which?”",
    ),
    (
        *("target", "submitted", {"opening": received("ready")}, "in_inbox"),
        "in the inbox since 2026-11-24T16:26:00Z, nobody took it",
    ),
    (
        *("target", "submitted", {"opening": received("ready"), "admitted": False}, "waits_for_admission"),
        "in the inbox since 2026-11-24T16:26:00Z; workers leave it: ops is not admitted",
    ),
    (
        *("target", "submitted", {"opening": received("leased", attempts=2, lease_until_ms=NOW + MINUTE)}, "leased"),
        "leased until 2026-11-24T16:31:00Z, attempt 2, not accepted",
    ),
    (
        *("target", "submitted", {"opening": received("leased", attempts=2, lease_until_ms=NOW - 1)}, "returned"),
        "returned to the inbox after attempt 2, ready again, nobody took it",
    ),
    (
        *(
            "target",
            "submitted",
            {"opening": received("ready", attempts=1, available_ms=NOW + 8_000, last_error="no disk")},
            "returned",
        ),
        "returned to the inbox after attempt 1, ready again in 8s: “no disk”",
    ),
    (
        *("target", "working", {**TAKEN, "opening": received("dead", attempts=5, last_error="no disk")}, "dead"),
        "dead after 5 attempts: “no disk”",
    ),
    (
        *("target", "submitted", {"opening": received("dead", last_error="purged by the operator")}, "dead"),
        "dead: “purged by the operator”",
    ),
    (
        *(
            "target",
            "submitted",
            {"opening": received("dead", last_error="held: it may have been done; run it")},
            "held",
        ),
        "it may have been done",
    ),
    (
        *("target", "submitted", {"opening": received("acked", attempts=1)}, "acknowledged"),
        "its message was acknowledged, and it was not accepted",
    ),
    (
        *("target", "working", TAKEN, "working"),
        "our agent has had it since 2026-11-24T16:26:00Z; our last report was 3m ago",
    ),
    (
        *("target", "working", {**TAKEN, "opening": received("leased", attempts=1, lease_until_ms=NOW + 1)}, "working"),
        "our agent has had it since 2026-11-24T16:26:00Z; our last report was 3m ago",
    ),
    (
        *("target", "working", {**TAKEN, "link_down": AWAY}, "working"),
        "our agent has had it since 2026-11-24T16:26:00Z; our last report was 3m ago",
    ),
    (
        *("target", "working", {**TAKEN, "last": received("ready")}, "in_inbox"),
        "a message of ops is in the inbox since 2026-11-24T16:26:00Z, nobody took it",
    ),
    (
        *("target", "working", {**TAKEN, "last": sent("published"), **GONE}, "peer_away"),
        f"our last message was published 4m ago; ops was last seen 10m ago; {EXPIRES}",
    ),
    (
        *("target", "working", {**TAKEN, "next": ("work_2", "goal")}, "waits_for_works"),
        "waits for the end of work_2, which goal has",
    ),
    (
        *("target", "needs_input", {**TAKEN, **GONE}, "asked"),
        "ops was asked at 2026-11-24T16:27:00Z and has not answered; ops was last seen 10m ago",
    ),
    (
        *("target", "needs_input", {**TAKEN, "link_down": AWAY}, "broker_away"),
        "the broker is away since 2026-11-24T16:28:00Z (connection refused): nothing of ops can arrive",
    ),
    ("observer", "working", {}, "observed", "between ops and patch-worker: this daemon only observes it"),
]


@pytest.mark.parametrize(("role", "state", "given", "code", "sentence"), TABLE)
def test_what_is_known_gives_code_and_sentence(
    role: str, state: str, given: dict[str, Any], code: str, sentence: str
) -> None:
    found = explained(role, state, **given)
    assert found is not None
    assert (found.code, spoken(found)) == (code, sentence)


def test_every_code_has_a_case_and_a_row_of_the_page() -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    listed = {code for row in rows for code in re.findall(r"\w+", row)}
    assert {row[3] for row in TABLE} == listed == {*get_args(WaitCode)}


@pytest.mark.parametrize("state", ["completed", "failed", "canceled"])
@pytest.mark.parametrize("role", ["initiator", "target", "observer"])
def test_a_work_that_has_ended_has_no_reason(role: str, state: str) -> None:
    assert explained(role, state, link_down=AWAY, **UNSEEN) is None


def test_hints_name_commands_for_this_work() -> None:
    asks = explained("initiator", "needs_input", **BEGUN, message="?")
    chain = explained("initiator", "needs_input", **BEGUN, message="?", chain=("run_1", "test"))
    dead = explained("target", "submitted", opening=received("dead", attempts=5))
    waits = explained("initiator", "submitted", opening=sent("receipted"), waits_for="admission")
    assert waits is not None and waits.hint == "the operator of patch-worker decides there (`trust admit ops`)"
    assert asks is not None and asks.hint == "answer: `aghctl work say work_1 TEXT`"
    assert chain is not None and chain.hint == "answer: `aghctl chain resume run_1 --node test --answer TEXT`"
    assert dead is not None and "`aghctl inbox requeue 7`" in dead.hint


def test_an_id_that_is_no_word_of_a_shell_is_in_no_command() -> None:
    stored: dict[str, Any] = dict.fromkeys(STORED)
    evil = work("initiator", "needs_input", work_id="$(rm -rf .)", message="?")
    found = wait_reason(Facts(now_ms=NOW, work=evil, stored=StoredFacts(**stored), seen_ms=NOW, present=True))
    assert found is not None and found.hint == "answer: `aghctl work say WORK_ID TEXT`"


def test_words_of_peers_are_apart_and_bounded_and_safe_to_print() -> None:
    found = explained("initiator", "needs_input", **BEGUN, message="\x1b[31mred" + "x" * 5_000)
    assert found is not None and found.said is not None
    assert "red" not in found.text and len(found.said) <= 300
    assert "\x1b" not in spoken(found) and "\\x1b[31mred" in spoken(found)
