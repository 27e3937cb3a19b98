"""Agents that ask a server about the weather: user, tool call, tool result, answer, each whole and
streamed.

`python benchmarks/agents.py CLIENT URL MODEL TOWN...` prints what they were told, as JSON, a text
for each loop. It needs nothing but the client, so any interpreter that has it will do. The server
plays examples/scripts/weather.yaml, or what was recorded of it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterable, Callable, Sequence
from typing import Any

QUESTION = "What is the weather in {}?"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sun in {city}"


def with_openai(url: str, model: str, towns: Sequence[str]) -> list[str]:
    """By the SDK of OpenAI."""
    import openai

    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        return [
            _loop(client, model, town, streamed) for town in towns for streamed in (False, True)
        ]


def _loop(client: Any, model: str, town: str, streamed: bool) -> str:
    messages: list[Any] = [{"role": "user", "content": QUESTION.format(town)}]
    while True:
        request = {"model": model, "messages": messages, "tools": [TOOL]}
        if streamed:
            with client.chat.completions.stream(**request) as events:
                message = events.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(**request).choices[0].message
        if not message.tool_calls:
            return str(message.content)
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            result = get_weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def with_pydantic_ai(url: str, model: str, towns: Sequence[str]) -> list[str]:
    """By an agent of pydantic-ai."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def watch(context: object, events: AsyncIterable[object]) -> None:
        async for _ in events:  # has every step streamed
            pass

    async def run() -> list[str]:
        provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
        agent = Agent(OpenAIChatModel(model, provider=provider), tools=[get_weather])
        return [
            (await agent.run(QUESTION.format(town), event_stream_handler=handler)).output
            for town in towns
            for handler in (None, watch)
        ]

    return asyncio.run(run())


CLIENTS: dict[str, Callable[[str, str, Sequence[str]], list[str]]] = {
    "openai": with_openai,
    "pydantic-ai": with_pydantic_ai,
}

if __name__ == "__main__":
    _, client_name, server, served, *cities = sys.argv
    json.dump(CLIENTS[client_name](server, served, cities), sys.stdout)
