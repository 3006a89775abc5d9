"""Give a work to the first peer with a capability, and wait for its end."""

from aghbus.client import Client

client = Client.from_env()
peer = client.whois("test.run", wait=10, first=True).peers[0]
work = client.run(
    peer.peer_id, "Run the migration smoke test", intent="test.run", on_question=lambda question: input(f"{question} ")
)
print(work.state, work.message, work.result)
