"""Amazon Bedrock's API: Converse, and InvokeModel with models of Anthropic, Amazon Nova, and AI21.

https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html
"""

import json
import re
from base64 import b64decode
from collections.abc import Iterator
from urllib.parse import unquote

import msgspec

from app.extensions.recording.conversation import Json
from app.extensions.recording.exchange import Exchange, RecordedAnswer
from app.extensions.recording.providers.translated import (
    CHAT,
    TranslatedExchange,
    call_piece,
    chat_chunk,
    function_tool,
    matched,
)
from app.extensions.recording.recorded_reply import parts_of
from config.untrusted import decode_untrusted

PATH = re.compile(r"/model/([^/]+)/(converse|converse-stream|invoke|invoke-with-response-stream)")
ANTHROPIC_VERSION = "anthropic_version"
"""Field of requests in the form of Anthropic's Messages API."""
FINISHES = {
    "end_turn": "stop",
    "tool_use": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
}
FILES = frozenset(("image", "document", "video"))
"""Blocks of a message whose content is not recorded."""
CHUNK = "chunk"
PRELUDE_BYTES = 12
"""Bytes of the lengths of a message and of its headers, and of their checksum."""
CHECKSUM_BYTES = 4
_EVENT_TYPE = re.compile(
    rb"\x0b:event-type\x07..([A-Za-z]+)|\x0f:exception-type\x07..([A-Za-z]+)", re.DOTALL
)


def translate(exchange: Exchange, body: Json) -> TranslatedExchange:
    """Returns an exchange of `PATH` as a chat, or as a message of Anthropic's API.

    Raises:
        AttributeError, LookupError, TypeError, ValueError: it is not an exchange of these APIs, or
            its model has another form of requests.
    """
    model, method = matched(PATH, exchange).groups()
    model = unquote(model)
    translated = TranslatedExchange(exchange)
    path = _path_of_model_api(body)
    if path:
        translated.set_request(path, {**body, "model": model})
        if exchange.answer.status < 400 and _is_event_stream(exchange.answer):
            translated.set_stream(_invoked_events(exchange.answer))
        return translated
    if not isinstance(body.get("messages"), list):
        raise ValueError(f"the form of requests for {model} is not supported")
    messages = list(_messages(body))
    translated.set_request(CHAT, {"model": model, "messages": messages, "tools": _tools(body)})
    if exchange.answer.status < 400:
        if _is_event_stream(exchange.answer):
            translated.set_stream(_streamed_events(translated))
        else:
            translated.set_stream(_whole_events(translated))
    return translated


def _path_of_model_api(body: Json) -> str:
    """Returns the path of the API whose form a request of InvokeModel has; empty for Converse.

    AI21's models have the form of OpenAI's chats, with texts as content.
    """
    if ANTHROPIC_VERSION in body:
        return "/v1/messages"
    messages = body.get("messages")
    if isinstance(messages, list) and messages and isinstance(messages[0].get("content"), str):
        return CHAT
    return ""


def _is_event_stream(answer: RecordedAnswer) -> bool:
    """Returns whether a body is not JSON; the length of a message begins with a zero byte."""
    return answer.body().startswith(b"\0")


def _messages(body: Json) -> Iterator[Json]:
    """Yields the messages of a chat. Results of tools have no text unless all are texts."""
    for message in body["messages"]:
        blocks: list[Json] = message["content"]
        results = [block["toolResult"] for block in blocks if block.get("toolResult")]
        # A chat has a message for each result, before the text that comes with it.
        yield from map(_result_message, results)
        others = [block for block in blocks if not block.get("toolResult")]
        calls = [_call(block["toolUse"]) for block in others if block.get("toolUse")]
        parts = [part for block in others if not block.get("toolUse") for part in _parts(block)]
        if parts or calls:
            yield {"role": message["role"], "content": parts, "tool_calls": calls}


def _result_message(result: Json) -> Json:
    message: Json = {"role": "tool", "tool_call_id": result["toolUseId"]}
    texts = [part.get("text") for part in result["content"]]
    if all(isinstance(text, str) for text in texts):
        message["content"] = [{"type": "text", "text": text} for text in texts]
    return message


def _call(tool_use: Json) -> Json:
    return {"id": tool_use["toolUseId"], "function": {"name": tool_use["name"]}}


def _parts(block: Json) -> Iterator[Json]:
    """Yields what a block of a message is in a chat: a part or, for unknown blocks, nothing."""
    if "guardContent" in block:
        yield {"type": "text", "text": block["guardContent"]["text"]["text"]}
    elif "text" in block:
        yield {"type": "text", "text": msgspec.convert(block["text"], str)}
    elif not FILES.isdisjoint(block):
        yield {"type": "file"}


def _tools(body: Json) -> list[Json]:
    tools: list[Json] = []
    for tool in (body.get("toolConfig") or {}).get("tools") or ():
        specification = tool.get("toolSpec")
        if specification:
            schema = specification["inputSchema"]["json"]
            tools.append(function_tool(specification["name"], schema))
    return tools


def _whole_events(translated: TranslatedExchange) -> Iterator[tuple[float, Json]]:
    """Yields a chunk of a chat for each block of a whole answer. Adds to the losses."""
    for at_s, answer in parts_of(translated.exchange.answer):
        translated.lose_others(
            answer, ("output", "stopReason", "usage", "metrics", "performanceConfig", "serviceTier")
        )
        for index, block in enumerate(answer["output"]["message"]["content"]):
            yield at_s, chat_chunk(_delta_of_block(block, index, translated))
        yield at_s, chat_chunk({}, _finish(answer["stopReason"]), _usage(answer))


def _delta_of_block(block: Json, index: int, translated: TranslatedExchange) -> Json:
    """Returns the text or call of a block, or of a piece of one. Adds to the losses."""
    translated.lose_others(block, ("text", "toolUse", "reasoningContent"))
    call = block.get("toolUse")
    if call:
        arguments = call.get("input", {})
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        name = call.get("name", "")
        return {"tool_calls": [call_piece(index, call.get("toolUseId"), name, arguments)]}
    thoughts = block.get("reasoningContent") or {}
    translated.lose_others(thoughts, ("reasoningText", "text", "signature", "redactedContent"))
    reasoning_text: Json = thoughts.get("reasoningText") or thoughts
    reasoning = reasoning_text.get("text", "")
    return {"content": block.get("text", ""), "reasoning": reasoning}


def _finish(reason: str) -> str:
    return FINISHES.get(reason, reason)


def _usage(fields: Json) -> Json:
    usage = fields.get("usage") or {}
    if "inputTokens" not in usage:
        return {}
    return {"prompt_tokens": usage["inputTokens"], "completion_tokens": usage["outputTokens"]}


def _streamed_events(translated: TranslatedExchange) -> Iterator[tuple[float, Json]]:
    """Yields the chunks of a chat for the events of a stream. Adds to the losses."""
    at_s = translated.exchange.answer.end_s
    for kind, event in _events(translated.exchange.answer.body()):
        if kind == CHUNK:  # of InvokeModel
            [(kind, event)] = _inner_event(event).items()
        index = event.get("contentBlockIndex", 0)
        if kind == "contentBlockStart":
            start = dict(event.get("start") or {})
            if "toolUse" in start:
                start["toolUse"] = {**start["toolUse"], "input": ""}
            yield at_s, chat_chunk(_delta_of_block(start, index, translated))
        elif kind == "contentBlockDelta":
            yield at_s, chat_chunk(_delta_of_block(event["delta"], index, translated))
        elif kind == "messageStop":
            yield at_s, chat_chunk({}, _finish(event["stopReason"]))
        elif kind == "metadata":
            yield at_s, chat_chunk({}, usage=_usage(event))
        elif kind.endswith("Exception"):
            yield at_s, {"error": {"type": kind, "message": event.get("message")}}


def _invoked_events(answer: RecordedAnswer) -> Iterator[tuple[float, Json]]:
    """Yields the events of Anthropic's stream, which are in the chunks of Bedrock's."""
    for kind, event in _events(answer.body()):
        if kind.endswith("Exception"):
            yield answer.end_s, {"type": "error", "error": {"message": event.get("message")}}
            continue
        yield answer.end_s, _inner_event(event)


def _inner_event(chunk: Json) -> Json:
    """Returns the event of the model's own API in a chunk of InvokeModel."""
    event = decode_untrusted(b64decode(chunk["bytes"]), type=Json)
    event.pop("amazon-bedrock-invocationMetrics", None)
    return event


def _events(body: bytes) -> Iterator[tuple[str, Json]]:
    """Yields the type and the JSON of each message of an event stream.

    Its form: https://docs.aws.amazon.com/transcribe/latest/dg/streaming-setting-up.html

    Raises:
        ValueError: A message is cut off, or is not JSON.
    """
    place = 0
    while place < len(body):
        total = int.from_bytes(body[place : place + 4], "big")
        header_end = place + PRELUDE_BYTES + int.from_bytes(body[place + 4 : place + 8], "big")
        end = place + total - CHECKSUM_BYTES
        if end > len(body) - CHECKSUM_BYTES or not place + PRELUDE_BYTES <= header_end <= end:
            raise ValueError("the event stream is cut off")
        kind = _EVENT_TYPE.search(body[place + PRELUDE_BYTES : header_end])
        name = (kind[1] or kind[2]).decode() if kind else ""
        yield name, decode_untrusted(body[header_end:end], type=Json)
        place += total
