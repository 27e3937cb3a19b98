"""Sessions by litellm's router: stdin has a configuration and the sessions as JSON.

Each session is a list of prompts. Prints the cached and all tokens of the prompts. A program and
not a test: litellm has an environment of its own.
"""

import asyncio
import json
import sys
from typing import Any

import litellm  # type: ignore[import-not-found]


async def main(config: dict[str, Any], sessions: list[list[list[dict[str, str]]]]) -> list[int]:
    """Sends each message of a session as a prompt; the sessions take turns."""
    router = litellm.Router(model_list=config["model_list"], **config["router_settings"])
    cached = 0
    total = 0
    for turn in zip(*sessions, strict=True):
        for session, messages in enumerate(turn):
            answer = await router.acompletion(
                model="tiny",
                messages=messages,
                max_tokens=2,
                metadata={"session_id": f"session {session}"},
            )
            total += answer.usage.prompt_tokens
            if answer.usage.prompt_tokens_details is not None:
                cached += answer.usage.prompt_tokens_details.cached_tokens or 0
    return [cached, total]


given_config, given_sessions = json.load(sys.stdin)
print(json.dumps(asyncio.run(main(given_config, given_sessions))))
