"""Lets agents of openai-agents use three tools:

`openai_agents_client.py URL MODEL`. Prints JSON.
"""

import asyncio
import json
import sys

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from agents.models.interface import Model
from openai import AsyncOpenAI

QUESTION = "Dinner in the capital of Italy, please."
MOST_TURNS = 6


async def ask(model: Model, streamed: bool) -> dict[str, object]:
    """The tools that were called, in order, and the answer."""
    calls: list[list[object]] = []

    @function_tool
    def find_capital(country: str) -> str:
        """The capital of a country."""
        calls.append(["find_capital", country])
        return "Rome"

    @function_tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        calls.append(["get_weather", city])
        return f"{city}: sun"

    @function_tool
    def book_table(city: str, outside: bool) -> str:
        """Books a table."""
        calls.append(["book_table", city, outside])
        return "20:00"

    tools = [find_capital, get_weather, book_table]
    agent = Agent(name="Waiter", instructions="Help.", tools=tools, model=model)
    if not streamed:
        return {
            "calls": calls,
            "answer": (await Runner.run(agent, QUESTION, max_turns=MOST_TURNS)).final_output,
        }
    run = Runner.run_streamed(agent, QUESTION, max_turns=MOST_TURNS)
    async for _ in run.stream_events():
        pass
    return {"calls": calls, "answer": run.final_output}


async def ask_all(url: str, model: str) -> dict[str, dict[str, object]]:
    set_tracing_disabled(True)
    results: dict[str, dict[str, object]] = {}
    async with AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:
        for api in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
            for streamed in (False, True):
                agent_model = api(model=model, openai_client=client)
                results[f"{api.__name__} {streamed}"] = await ask(agent_model, streamed)
    return results


if __name__ == "__main__":
    json.dump(asyncio.run(ask_all(sys.argv[1], sys.argv[2])), sys.stdout)
