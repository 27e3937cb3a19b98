"""An agent of openai-agents whose tools are those of an MCP server. Prints its answer as JSON.

python mcp_agent.py BASE_URL MCP_URL QUESTION
"""

import asyncio
import json
import sys

from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from agents.mcp import MCPServerStreamableHttp
from openai import AsyncOpenAI


async def answer(base_url: str, mcp_url: str, question: str) -> str:
    """Runs the agent until it answers."""
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)
    model = OpenAIChatCompletionsModel(model="understudy-tiny", openai_client=client)
    async with MCPServerStreamableHttp(
        params={"url": mcp_url}, client_session_timeout_seconds=20
    ) as server:
        agent = Agent(name="agent", model=model, mcp_servers=[server])
        result = await Runner.run(agent, question)
    return str(result.final_output)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(answer(*sys.argv[1:]))))
