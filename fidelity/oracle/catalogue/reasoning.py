"""Reasoning parsers: scripted texts, as a whole and as streams, through three routes."""

from app.core.protocol.coercion import JsonObject
from fidelity.oracle.cases import MODEL, Area
from fidelity.oracle.catalogue.requests import CHAT, CHAT_FIELDS, MESSAGES, QUESTION, RESPONSES

TEXTS = {
    "thought and answer": "<think>It may be red.</think>It is red.",
    "thought without a begin": "It may be red.</think>It is red.",
    "thought without an end": "<think>It may be red.",
    "thought only": "<think>It may be red.</think>",
    "empty thought": "<think></think>It is red.",
    "no thought": "It is red.",
    "two thoughts": "<think>Red?</think>Red.<think>Blue?</think>Blue.",
    "line breaks": "<think>\nRed?\n</think>\n\nIt is red.",
}
THOUGHT = [{"type": "reasoning_text", "text": "It may be red."}]
SUMMARY = [{"type": "summary_text", "text": "Red?"}]
ITEMS: dict[str, JsonObject] = {
    "bare": {"id": "rs_1", "summary": []},
    "content": {"id": "rs_1", "summary": [], "content": THOUGHT},
    "content that is null": {"id": "rs_1", "summary": [], "content": None},
    "fields that are null": {
        "id": "rs_1",
        "summary": [],
        "content": None,
        "encrypted_content": None,
        "status": None,
    },
    "encrypted content that is null": {"id": "rs_1", "summary": [], "encrypted_content": None},
    "encrypted content": {"id": "rs_1", "summary": SUMMARY, "encrypted_content": "x"},
    "summary": {"id": "rs_1", "summary": SUMMARY},
    "summary and content": {"id": "rs_1", "summary": SUMMARY, "content": THOUGHT},
    "status": {"id": "rs_1", "summary": [], "status": "completed"},
    "invalid part": {"id": "rs_1", "summary": [], "content": [{"type": "smell", "text": "a"}]},
    "no id": {"summary": [], "content": THOUGHT},
    "no summary": {"id": "rs_1", "content": THOUGHT},
}
"""Thoughts in the input of a response: the forms that OpenAI's clients and agents send."""
VALUES = ("content", "reasoning", "finish_reason", "text", "thinking", "stop_reason")


def _areas(configuration: str) -> tuple[Area, ...]:
    name = f"reasoning, {configuration}"
    fields = {**CHAT_FIELDS, "ignore_eos": False}
    chat = Area(name, path=CHAT, fields=fields, configuration=configuration, ignored=("bytes",))
    routes = Area(f"{name}, other routes", configuration=configuration)
    for label, text in TEXTS.items():
        script = {"structured_outputs": {"choice": [text]}, "max_tokens": 100}
        for stream in (False, True):
            chat.case(
                f"{label}, {'stream' if stream else 'whole'}",
                "The parser divides thought and answer.",
                {**script, "stream": stream},
                values=() if stream else VALUES,
            )
        routes.case(
            f"{label}, response",
            "A thought is an item of its own.",
            path=RESPONSES,
            body={
                "model": MODEL,
                "input": "Hi",
                "max_output_tokens": 100,
                "structured_outputs": {"choice": [text]},
            },
        )
    chat.variants(
        "Fields of requests to models that think.",
        {
            "without reasoning": {"include_reasoning": False},
            "thinking off": {"chat_template_kwargs": {"enable_thinking": False}},
            "low effort": {"reasoning_effort": "low"},
            "budget": {"thinking_token_budget": 2},
            "log probabilities": {"logprobs": True},
            "schema": {"response_format": {"type": "json_object"}, "max_tokens": 60},
            "stream": {"stream": True},
            "stream without reasoning": {"stream": True, "include_reasoning": False},
        },
    )
    message = {"model": MODEL, "max_tokens": 5, "messages": QUESTION}
    routes.case("message", "A thought is a block of its own.", path=MESSAGES, body=message)
    routes.case(
        "message stream",
        "A thought is a block of its own.",
        path=MESSAGES,
        body={**message, "stream": True},
    )
    for label, item in ITEMS.items():
        routes.case(
            f"thought in the input, {label}",
            "Agents send the thoughts of earlier turns.",
            path=RESPONSES,
            body={
                "model": MODEL,
                "input": [
                    {"role": "user", "content": "Hi"},
                    {"type": "reasoning", **item},
                    {"role": "user", "content": "Why?"},
                ],
                "max_output_tokens": 5,
            },
        )
    response = {"model": MODEL, "input": "Hi", "max_output_tokens": 5, "stream": True}
    routes.case("response stream", "A thought is an item.", path=RESPONSES, body=response)
    return chat, routes


AREAS = (*_areas("qwen3"), *_areas("deepseek_r1"))
