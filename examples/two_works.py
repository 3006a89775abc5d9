"""The same with asyncio: two works at once, and errors by their class."""

import asyncio

from aghbus.client import AsyncClient, NotFound


async def main() -> None:
    client = AsyncClient.from_env()
    texts = ["Run the smoke test", "Run the migration test"]
    calls = (client.run("patch-worker", text, intent="test.run", on_question=lambda _: "main") for text in texts)
    works = await asyncio.gather(*calls)
    print([work.state for work in works])
    try:
        await client.work("work_unknown")
    except NotFound as error:
        print(error.code, error.message, error.hint)


asyncio.run(main())
