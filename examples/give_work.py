"""Give a work to a peer with a capability, and wait for its end."""

from aghbus.client import Client

client = Client.from_env()
work = client.start(
    to_capability="test.run",
    text="Run the migration smoke test",
    on_question=lambda question: input(f"{question} "),
)
done = work.result()
print(done.state, done.message, done.result)
