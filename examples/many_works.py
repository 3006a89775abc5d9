"""Give each input to the least busy peer with a capability, four at a time, and print the results as they come."""

from aghbus.client import Client

client = Client.from_env()
texts = ["one", "one two", "one two three"]
for text, work in client.map("text.count", texts, concurrency=4):
    print(text, "->", work.state, work.result)
