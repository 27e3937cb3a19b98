"""Agents with one tool:

`weather_agents.py NAME BASE_URL QUESTION` prints the answer of one of AGENTS.
"""

import json
import sys
from typing import Any

MODEL = "tiny"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def openai_chat(base_url: str, question: str) -> str | None:
    """The loop that users of the openai SDK write."""
    from openai import OpenAI

    client = OpenAI(base_url=base_url, api_key="none")
    tools: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        answer = client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
        message = answer.choices[0].message
        if not message.tool_calls:
            return message.content
        messages.append(message)
        for call in message.tool_calls:
            result = get_weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def openai_responses(base_url: str, question: str) -> str:
    """The same by the Responses API."""
    from openai import OpenAI

    client = OpenAI(base_url=base_url, api_key="none")
    tools: Any = [{"type": "function", "name": "get_weather", "parameters": SCHEMA}]
    items: list[Any] = [{"role": "user", "content": question}]
    while True:
        response = client.responses.create(model=MODEL, input=items, tools=tools)
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return response.output_text
        items += [item.model_dump(exclude_none=True) for item in response.output]
        for call in calls:
            result = get_weather(**json.loads(call.arguments))
            items.append(
                {"type": "function_call_output", "call_id": call.call_id, "output": result}
            )


def anthropic(base_url: str, question: str) -> str:
    """The tool runner of the anthropic SDK; from the second turn on it sends only what is new (a
    thread).
    """
    from anthropic import Anthropic, beta_tool

    client = Anthropic(base_url=base_url.removesuffix("/v1"), api_key="none")
    messages: Any = [{"role": "user", "content": question}]
    tools: Any = [beta_tool(get_weather)]
    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=100, messages=messages, tools=tools
    )
    return "".join(block.text for block in runner.until_done().content if block.type == "text")


def openai_agents(base_url: str, question: str) -> str:
    """The runner of openai-agents."""
    from agents import (
        Agent,
        OpenAIChatCompletionsModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    model = OpenAIChatCompletionsModel(MODEL, AsyncOpenAI(base_url=base_url, api_key="none"))
    agent = Agent(name="Forecaster", tools=[function_tool(get_weather)], model=model)
    return str(Runner.run_sync(agent, question).final_output)


def get_weather(city: str) -> str:
    """The weather of a city."""
    return {"Rome": "sunny"}[city]


AGENTS = {
    agent.__name__: agent for agent in (openai_chat, openai_responses, anthropic, openai_agents)
}

if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    json.dump(AGENTS[name](*arguments), sys.stdout)
