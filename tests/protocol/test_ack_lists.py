"""Answers of one commit to one sender: lists of them, for a sender that takes lists."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.agh.delivery.acks import (
    MAX_ANSWER_BYTES,
    Ack,
    Acks,
    answer_messages,
    encode_ack,
    encode_signed_ack,
    is_answer_of,
    may_answer,
    parse_ack,
)
from aghbus.protocol.agh.nats.names import inbox
from aghbus.protocol.agh.trust.keys import SigningKey
from aghbus.protocol.agh.trust.proof import EnvelopeSigner

LISTS = f"{inbox('ops', 'ack')}.list.0f3a"
SINGLE = f"{inbox('ops', 'ack')}.0f3a"
SIGNER = EnvelopeSigner(SigningKey(bytes(32)), "worker")


def answers(count: int, characters: int = 41) -> list[tuple[str, Ack]]:
    """So many answers about messages whose ids have that length."""
    return [
        (str(100_000 + number), Ack(f"msg_{number:0{characters - 4}}", "committed", None, "0" * 64))
        for number in range(count)
    ]


def signed(ack: Ack | Acks) -> bytes:
    return encode_signed_ack(ack, sender=SIGNER.handle, to="ops", signer=SIGNER)


def read(messages: Sequence[tuple[str, bytes]]) -> list[tuple[str, Ack]]:
    """The reply subject and answer of everything in these messages."""
    found: list[tuple[str, Ack]] = []
    for subject, raw in messages:
        assert may_answer(subject)
        match parse_ack(raw):
            case Ack() as ack:
                found.append((subject, ack))
            case Acks(acks=acks):
                assert len(acks) > 1
                assert len(raw) <= MAX_ANSWER_BYTES
                found += [(f"{subject.rpartition('.')[0]}.{token}", ack) for token, ack in acks]
    return found


@pytest.mark.parametrize("encode", [encode_ack, signed])
def test_ack_list_carries_up_to_sixteen_answers_per_message(
    encode: Callable[[Ack | Acks], bytes],
) -> None:
    given_ = answers(33)
    messages = list(answer_messages(LISTS, given_, encode))
    assert [subject for subject, _ in messages] == [f"{LISTS}.{token}" for token, _ in given_[::16]]
    assert read(messages) == [(f"{LISTS}.{token}", ack) for token, ack in given_]
    assert isinstance(parse_ack(messages[-1][1]), Ack)  # one alone is no list


def test_any_other_sender_gets_each_answer_on_its_own_reply_subject() -> None:
    messages = list(answer_messages(SINGLE, answers(3), encode_ack))
    assert messages == [(f"{SINGLE}.{token}", encode_ack(ack)) for token, ack in answers(3)]


def test_answers_that_are_too_long_for_a_list_are_sent_alone() -> None:
    messages = list(answer_messages(LISTS, answers(16, characters=256), encode_ack))
    assert len(messages) == 16
    assert read(messages) == [(f"{LISTS}.{token}", ack) for token, ack in answers(16, characters=256)]


def test_a_list_is_signed_as_a_whole() -> None:
    ((_, raw),) = answer_messages(LISTS, answers(2), signed)
    assert is_answer_of(raw, recipient=SIGNER.handle, sender="ops")
    assert not is_answer_of(raw, recipient=SIGNER.handle, sender="another")
    assert not is_answer_of(raw.replace(b"committed", b"refused", 1), recipient=SIGNER.handle, sender="ops")
    assert not is_answer_of(encode_ack(Acks(answers(2))), recipient=SIGNER.handle, sender="ops")


@pytest.mark.parametrize("other", [b"", b"{}", b"[" * 5000, b'{"aghbus":"ack","id":"\xff","outcome":"committed"}'])
def test_any_other_message_on_a_reply_subject_is_no_answer(other: bytes) -> None:
    assert parse_ack(other) is None


ACKS = st.builds(
    Ack,
    st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=256),
    st.sampled_from(["committed", "refused"]),
    st.none() | st.just("malformed"),
    st.just("0" * 64),
)


@given(st.sampled_from([LISTS, SINGLE]), st.lists(ACKS, max_size=40))
def test_every_answer_comes_exactly_once_for_its_reply_subject(to: str, acks: list[Ack]) -> None:
    numbered = [(str(number), ack) for number, ack in enumerate(acks)]
    found = read(list(answer_messages(to, numbered, encode_ack)))
    assert found == [(f"{to}.{token}", ack) for token, ack in numbered]
