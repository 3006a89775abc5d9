"""What is remembered of the server's refusals, and for how long, in the words of nats-server 2.15 as nats-py lowers them."""

from aghbus.daemon.nats.permission_errors import DeniedSubjects

SUBSCRIPTION = 'nats: permissions violation for subscription to "{}"'
PUBLISH = 'nats: permissions violation for publish to "{}"'


def test_a_refused_subscription_is_a_problem_until_the_connection_ends() -> None:
    assert not DeniedSubjects("ops").has_denied_subscriptions
    denied = DeniedSubjects("ops")
    denied.note(SUBSCRIPTION.format("a.b"), 0.0)
    assert denied.has_denied_subscriptions
    (sentence,) = denied.problems(1e6)
    assert "subscribe to a.b (`aghctl nats permissions --peer ops`" in sentence
    denied.link_down()
    assert denied.problems(0.0) == []
    assert [denied.has_denied_subscriptions] == [False]


def test_a_refused_publish_is_a_problem_while_it_is_tried() -> None:
    denied = DeniedSubjects("ops")
    denied.note(PUBLISH.format("a.b"), 10.0)
    assert not denied.has_denied_subscriptions
    assert "publish to a.b " in denied.problems(300.0)[0]
    assert denied.problems(311.0) == []
    denied.note(PUBLISH.format("a.b"), 320.0)
    assert len(denied.problems(330.0)) == 1


def test_many_refusals_are_one_short_sentence_of_each_kind() -> None:
    denied = DeniedSubjects("ops")
    for number in range(10_000):
        denied.note(PUBLISH.format(f"p.{number}"), 0.0)
        denied.note(SUBSCRIPTION.format(f"s.{number}"), 0.0)
    first, second = denied.problems(0.0)
    assert "s.9999 and 13 more" in first
    assert "p.9999 and 13 more" in second


def test_an_unknown_error_message_is_shown() -> None:
    denied = DeniedSubjects("ops")
    denied.note('nats: permissions violation for publish with reply of "x"', 0.0)
    assert 'with reply of "x' in denied.problems(0.0)[0]


def test_denied_publish_matches_subject_prefix_ignoring_case() -> None:
    denied = DeniedSubjects("ops")
    denied.note(PUBLISH.format("$js.api.direct.get.obj_x"), 0.0)
    assert denied.refuses("$JS.API", 300.0)
    assert not denied.refuses("$JS.API.STREAM", 0.0)
    assert not denied.refuses("$JS.A", 0.0)
    assert not denied.refuses("$JS.API", 301.0)


def test_the_hint_has_the_options_that_grant_the_subjects() -> None:
    denied = DeniedSubjects("ops")
    denied.note(PUBLISH.format("$js.api.stream.info.obj_agh_artifacts_v0"), 0.0)
    assert "--peer ops --artifacts`" in denied.problems(0.0)[0]
    denied.note(PUBLISH.format("$js.api.stream.info.agh_network_v0"), 0.0)
    assert "--peer ops --artifacts --durability jetstream`" in denied.problems(0.0)[0]
