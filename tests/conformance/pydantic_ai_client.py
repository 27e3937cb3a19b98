"""Asks a server through pydantic-ai: `pydantic_ai_client.py URL MODEL`. Prints JSON."""

import asyncio
import json
import sys
from typing import Annotated

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings


class Verdict(BaseModel):
    """A structured reply."""

    good: bool
    grade: Annotated[int, Field(ge=1, le=6)]
    reasons: list[str] = []


async def ask(url: str, model: str) -> dict[str, object]:
    provider = OpenAIProvider(base_url=url + "/v1", api_key="none")
    served = OpenAIChatModel(model, provider=provider)
    brief = Agent(served, model_settings=ModelSettings(max_tokens=6, seed=1))
    whole = await brief.run("Say something.")
    async with brief.run_stream("Say something.") as stream:
        streamed = "".join([piece async for piece in stream.stream_text(delta=True)])
        streamed_usage = stream.usage
    cities: list[str] = []
    caller = Agent(served)

    @caller.tool_plain
    def get_weather(city: str) -> str:
        """The weather of a city."""
        cities.append(city)
        return f"sun in {city}"

    answers = [
        (
            await caller.run(
                "What is the weather in Rome?", model_settings=ModelSettings(seed=seed)
            )
        ).output
        for seed in range(5)
    ]
    verdicts = {
        form.__name__: (
            await Agent(served, output_type=form(Verdict)).run("Is it good?")
        ).output.model_dump()
        for form in (ToolOutput, NativeOutput)
    }
    refused = 0
    try:
        await Agent(OpenAIChatModel("none", provider=provider)).run("hello")
    except ModelHTTPError as error:
        refused = error.status_code
    return {
        "whole": whole.output,
        "streamed": streamed,
        "usage": [whole.usage.output_tokens, streamed_usage.output_tokens],
        "cities": cities,
        "answers": answers,
        "verdicts": verdicts,
        "unknown_model": refused,
    }


if __name__ == "__main__":
    json.dump(asyncio.run(ask(sys.argv[1], sys.argv[2])), sys.stdout)
