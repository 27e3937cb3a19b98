"""Sends requests over kept connections with a library of HTTP or vLLM clients, and counts the lost
ones.

    python client.py LIBRARY URL CONNECTIONS REQUESTS

Prints one line of JSON: `answered`, and `lost` with a count for each reason. A request is lost when
its client gets an error, a status other than 200, or a stream without its end. The libraries do not
retry. The script needs the library alone, so that another interpreter than the benchmark's can run
it.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

PAUSE_S = 0.2
"""Mean pause of a client between an answer and its next request, in seconds."""
SHARE_OF_PAUSES = 0.5
"""Share of requests after a pause; the others follow their answer at once."""
TIMEOUT_S = 60.0
DONE = "data: [DONE]"
Ask = Callable[[bool], Awaitable[None]]
"""Sends one request, streamed or not; raises for a lost one."""


def body_of(is_streamed: bool) -> dict[str, Any]:
    """A chat request. A streamed reply is longer, so that some are under way at every signal."""
    return {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello there"}],
        "max_tokens": 60 if is_streamed else 5,
        "stream": is_streamed,
    }


def check(status: int, text: str, is_streamed: bool) -> None:
    """Raises ValueError unless the answer is a whole one."""
    if status != 200:
        raise ValueError(f"status {status}: {text[:60]!r}")
    if is_streamed and DONE not in text:
        raise ValueError("stream without an end")
    if not is_streamed:
        json.loads(text)


async def ask_with_aiohttp(
    url: str, connections: int, run: Callable[[Ask], Awaitable[None]]
) -> None:
    aiohttp = importlib.import_module("aiohttp")
    # aiohttp retries idempotent methods only, and POST is none.
    connector = aiohttp.TCPConnector(limit=connections)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def ask(is_streamed: bool) -> None:
            chat_url = f"{url}/v1/chat/completions"
            async with session.post(chat_url, json=body_of(is_streamed)) as answer:
                check(answer.status, await answer.text(), is_streamed)

        await run(ask)


async def ask_with_httpx(url: str, connections: int, run: Callable[[Ask], Awaitable[None]]) -> None:
    httpx = importlib.import_module("httpx")
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    async with httpx.AsyncClient(limits=limits, timeout=TIMEOUT_S) as client:

        async def ask(is_streamed: bool) -> None:
            answer = await client.post(f"{url}/v1/chat/completions", json=body_of(is_streamed))
            check(answer.status_code, answer.text, is_streamed)

        await run(ask)


async def ask_with_openai(
    url: str, connections: int, run: Callable[[Ask], Awaitable[None]]
) -> None:
    openai = importlib.import_module("openai")
    client = openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S
    )

    async def ask(is_streamed: bool) -> None:
        answer = await client.chat.completions.create(**body_of(is_streamed))
        if is_streamed:
            reasons = [choice.finish_reason async for chunk in answer for choice in chunk.choices]
            if "length" not in reasons and "stop" not in reasons:
                raise ValueError("stream without an end")

    async with client:
        await run(ask)


CLIENTS = {"aiohttp": ask_with_aiohttp, "httpx": ask_with_httpx, "openai": ask_with_openai}


async def measure(library: str, url: str, connections: int, requests: int) -> dict[str, Any]:
    """Shares `requests` among so many clients, each with one request at a time."""
    numbers = iter(range(requests))
    answered = 0
    lost: Counter[str] = Counter()

    async def work(ask: Ask) -> None:
        nonlocal answered
        for number in numbers:
            if random.random() < SHARE_OF_PAUSES:
                await asyncio.sleep(random.uniform(0.0, 2 * PAUSE_S))
            try:
                await ask(number % 2 == 1)
                answered += 1
            except Exception as error:
                lost[f"{type(error).__name__}: {error}"[:100]] += 1

    async def run(ask: Ask) -> None:
        await asyncio.gather(*(work(ask) for _ in range(connections)))

    await CLIENTS[library](url, connections, run)
    return {"answered": answered, "lost": dict(lost)}


def main(words: Sequence[str]) -> None:
    library, url, connections, requests = words
    print(json.dumps(asyncio.run(measure(library, url, int(connections), int(requests)))))


if __name__ == "__main__":
    main(sys.argv[1:])
