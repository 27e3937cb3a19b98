"""A client of MCP servers, for an interpreter that has the official SDK.

Each line of standard input is the JSON of a target, which is a URL or a stdio command, and of the
calls, each a tool's name and its arguments. Prints a line with the outcomes for each.
"""

import json
import sys
from typing import Any

import anyio
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client

READ_TIMEOUT_S = 20.0


async def outcomes(target: Any, calls: list[Any]) -> dict[str, Any]:
    """Calls tools one by one; the outcome of a call is its result, its error, or an exception."""
    transport: Any = target
    if isinstance(target, dict):
        transport = stdio_client(StdioServerParameters(**target))
    results = []
    async with Client(transport, read_timeout_seconds=READ_TIMEOUT_S) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        for name, arguments in calls:
            try:
                result = await client.call_tool(name, arguments)
            except MCPError as error:
                results.append({"exception": str(error)})
                continue
            outcome = {"text": result.content[0].text, "is_error": bool(result.is_error)}
            results.append({**outcome, "structured": result.structured_content})
    return {"tools": tools, "results": results}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(anyio.run(outcomes, *json.loads(line))), flush=True)
