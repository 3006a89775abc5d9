"""Give one text to several capabilities at once, and collect the results."""

import asyncio

from aghbus.client import AsyncClient


async def main() -> None:
    client = AsyncClient.from_env()
    capabilities = ["test.run", "text.count"]
    calls = (
        client.run(to_capability=one, text="Run the smoke test", on_question=lambda _: "main", timeout=60)
        for one in capabilities
    )
    works = await asyncio.gather(*calls, return_exceptions=True)
    for capability, work in zip(capabilities, works, strict=True):
        print(capability, repr(work) if isinstance(work, BaseException) else (work.state, work.result))


asyncio.run(main())
