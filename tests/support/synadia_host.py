"""A host of Synadia's library as a program: URL TOKEN AGENT OWNER."""

import asyncio
import sys
from pathlib import Path

import nats
from synadia_ai.agent_service import AgentService, PromptStream
from synadia_ai.agents import Envelope


async def serve(url: str, token: str, agent: str, owner: str) -> None:
    client = await nats.connect(servers=url, token=token)
    service = AgentService(agent=agent, owner=owner, session_name="repo", nc=client)

    async def on_prompt(envelope: Envelope, stream: PromptStream) -> None:
        with Path(f"{agent}.prompts").open("a") as prompts:  # noqa: ASYNC230 - a line
            print(envelope.prompt, file=prompts)
        await stream.send("began\n")
        while not Path(f"{agent}.go").exists():  # noqa: ASYNC110, ASYNC240 - a test makes the file
            await asyncio.sleep(0.02)
        await stream.send("ended")

    service.on_prompt(on_prompt)
    await service.start()
    print("up", flush=True)
    await asyncio.Event().wait()


asyncio.run(serve(*sys.argv[1:]))
