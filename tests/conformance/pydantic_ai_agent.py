"""Lets an agent of pydantic-ai ask a server with a script: `pydantic_ai_agent.py URL MODEL`. Prints JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterable

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


async def watch(context: object, events: AsyncIterable[object]) -> None:
    """Has every step of the agent streamed."""
    async for _ in events:
        pass


async def ask(url: str, model: str) -> dict[str, object]:
    agent = Agent(OpenAIChatModel(model, provider=OpenAIProvider(base_url=url + "/v1", api_key="none")))
    cities: list[str] = []

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """The weather of a city."""
        cities.append(city)
        return f"sun in {city}"

    question = "What is the weather in Rome?"
    answer = (await agent.run(question)).output
    called = list(cities)
    streamed = (await agent.run(question, event_stream_handler=watch)).output
    return {"cities": called, "answer": answer, "streamed": streamed}


if __name__ == "__main__":
    json.dump(asyncio.run(ask(sys.argv[1], sys.argv[2])), sys.stdout)
