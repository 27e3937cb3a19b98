"""Asks a server through langchain-openai: `langchain_client.py URL MODEL`. Prints JSON."""

import json
import sys
from typing import Any

from langchain_core.messages import AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


@tool
def weather(city: str, days: int = 1) -> str:
    """The weather of a city for some days."""
    return f"{city}: sun for {days} days"


class Verdict(BaseModel):
    """A structured reply."""

    good: bool
    reasons: list[str]


def main(url: str, model: str) -> None:
    chat = ChatOpenAI(
        base_url=url + "/v1", api_key="none", model=model, max_retries=0, stream_usage=True
    )
    question: list[Any] = [SystemMessage("Be brief."), HumanMessage("How is the weather in Rome?")]
    whole = chat.invoke(question, max_tokens=6, seed=5)
    pieces = list(chat.stream(question, max_tokens=6, seed=5))
    streamed = pieces[0]
    for piece in pieces[1:]:
        streamed += piece
    calling = chat.bind_tools([weather], tool_choice="required")
    called = calling.invoke(question)
    call = called.tool_calls[0]
    answer = chat.invoke(
        [*question, called, ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])]
    )
    gathered: AIMessageChunk | None = None
    for piece in calling.stream(question):
        gathered = piece if gathered is None else gathered + piece
    assert gathered is not None
    verdict = chat.with_structured_output(Verdict, method="json_schema").invoke("Is it good?")
    json.dump(
        {
            "whole": whole.content,
            "streamed": streamed.content,
            "usage": whole.usage_metadata and whole.usage_metadata["output_tokens"],
            "streamed_usage": streamed.usage_metadata and streamed.usage_metadata["output_tokens"],
            "call": call["name"],
            "arguments": call["args"],
            "streamed_call": gathered.tool_calls[0]["name"],
            "streamed_arguments": gathered.tool_calls[0]["args"],
            "answer": answer.content,
            "verdict": verdict.model_dump() if isinstance(verdict, Verdict) else None,
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
