"""Asks a server through llama-index: `llama_index_client.py URL MODEL`. Prints JSON."""

import json
import sys
from typing import Annotated

from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field


class Verdict(BaseModel):
    """A structured reply."""

    good: bool
    grade: Annotated[int, Field(ge=1, le=6)]


def weather(days: int) -> str:
    """The weather of some days."""
    return f"sun for {days} days"


def main(url: str, model: str) -> None:
    options = {"api_base": url + "/v1", "api_key": "none", "max_retries": 0, "context_window": 2048}
    talk = {"model": model, "is_chat_model": True, "is_function_calling_model": True, **options}
    brief = OpenAILike(max_tokens=6, additional_kwargs={"seed": 1}, **talk)
    caller = OpenAILike(max_tokens=40, **talk)
    text = OpenAILike(max_tokens=6, model=model, is_chat_model=False, **options)
    question = [ChatMessage(role="user", content="How is the weather?")]
    tool = FunctionTool.from_defaults(fn=weather)
    called = caller.chat_with_tools([tool], chat_history=question, tool_required=True)
    *_, streamed_call = caller.stream_chat_with_tools(
        [tool], chat_history=question, tool_required=True
    )
    whole = brief.chat(question)
    *_, streamed = brief.stream_chat(question)
    verdict = OpenAILike(**talk).structured_predict(Verdict, PromptTemplate("Is it good?"))
    results = {
        "whole": whole.message.content,
        "streamed": streamed.message.content,
        "usage": whole.raw.usage.completion_tokens,
        "text": text.complete("hello").text,
        "streamed_text": "".join(piece.delta or "" for piece in text.stream_complete("hello")),
        "calls": [
            [
                (call.tool_name, call.tool_kwargs)
                for call in caller.get_tool_calls_from_response(reply_with_calls)
            ]
            for reply_with_calls in (called, streamed_call)
        ],
        "verdict": verdict.model_dump(),
    }
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
