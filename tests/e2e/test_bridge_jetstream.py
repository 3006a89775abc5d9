"""Foreign messages with durability "jetstream": messages and answers to an absent peer survive kills."""

from tests.support.bridge_daemons import MAP, SHORT, messages, query
from tests.support.bridging import submit
from tests.support.daemons import DURABLE, NO_RETRY, Home, delivery, ops_and_worker, wait_for
from tests.support.natsutil import NatsServer


async def test_a_question_and_its_answer_cross_kills_of_both_daemons(home: Home, server: NatsServer) -> None:
    flags = ("--nats", server.url, *DURABLE, *NO_RETRY, *MAP)
    with ops_and_worker(home, *flags) as (ops, worker):
        worker.kill()
        question = query("asker", "helper", ttl=600)
        sent = submit(ops, "agentos", question)["sent"][0]
        wait_for(lambda: delivery(ops, sent["id"]) == "published", SHORT, "the stream to have the question")
        ops.kill()  # whatever comes now comes from the stream
        worker.start()
        (asked,) = messages(worker, "agentos", 1)
        assert asked["message"] == question
        assert not asked["native"]
        evidence = {"sources": [{"type": "code", "location": "a.py", "confidence": 90}], "confidence": 90}
        reply = query("helper", "asker", type="response", replyTo=question["id"], evidence=evidence)
        given = submit(worker, "agentos", reply)["sent"][0]
        wait_for(lambda: delivery(worker, given["id"]) == "published", SHORT, "the stream to have the answer")
        worker.kill()
        ops.start()
        (answer,) = messages(ops, "agentos", 1)
        assert answer["message"] == reply
        assert (answer["work_id"], answer["work_state"]) == (sent["work_id"], "completed")
        rows = ops.get("/v1/bridge/agentos/log")["rows"]
        assert [(row["messageId"], row["direction"], row["status"]) for row in rows] == [
            (question["id"], "sent", "success"),
            (reply["id"], "received", "success"),
        ]
        assert submit(ops, "agentos", question)["repeated"]
        worker.start()
        wait_for(lambda: worker.state_of(sent["work_id"]) == "completed", SHORT, "the worker's own copy")
        assert submit(worker, "agentos", reply)["repeated"]
        assert len(ops.get("/v1/messages?kind=trace&direction=in")["messages"]) == 1
