"""Has a report written by a peer that can do it, and prints it."""

from aghbus.client import Client


def answer(question: str) -> str:
    print("asked:", question)
    return "Weekly report"


client = Client.from_env("ops")
work = client.start(
    to_capability="text.report",
    text="All tests pass since Monday",
    on_question=answer,
    on_progress=lambda text: print("progress:", text),
)
done = work.result()
print(done.state, "by", done.target, "-", done.message)
print(b"".join(client.get_artifact(done.work_id, "report.md")).decode())
