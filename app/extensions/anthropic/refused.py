"""Requests that vLLM rejects because of tools or blocks that Anthropic's server runs.

A recorded reply can answer them all the same: a rule of a script with `blocks`. The rest of the
request is then handled as usual.
"""

from typing import TypeVar

import msgspec

from app.core.api.pipeline import RequestPipeline
from app.core.api.reply_rules import NeedsRule
from app.core.base.clock.pause import Slices
from app.core.protocol.coercion import JsonObject
from app.core.protocol.common import encode
from app.core.protocol.decoding import decode
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError
from app.core.server.http.response import JSON
from app.extensions.anthropic.protocol import (
    AnthropicBlock,
    CountTokensRequest,
    MessagesRequest,
    ToolParam,
)
from config.untrusted import UntrustedDataError, decode_untrusted

T = TypeVar("T", MessagesRequest, CountTokensRequest)


def decode_without_refused(
    pipeline: RequestPipeline, context: RequestContext, request_type: type[T], error: ApiError
) -> T:
    """Returns the request without its tools and blocks that vLLM does not have.

    The request then needs a rule that may answer it.

    Raises:
        ApiError: `error`, which vLLM answers: no rule may answer, or more is wrong.
    """
    if pipeline.scripts is None or not pipeline.scripts.answers_refused():
        raise error
    try:
        values = decode_untrusted(pipeline.body.read(context), type=JsonObject)
        request = decode(encode(_without_refused(values)), JSON, request_type)
    except (ApiError, UntrustedDataError):
        raise error from None
    context.keep(NeedsRule(error, is_refused=True))
    return request


def _without_refused(values: JsonObject) -> JsonObject:
    """Returns a body without tools and blocks of other types. May pause.

    Messages without any block are left out, too.
    """
    slices = Slices()
    tools = _those_of(values.get("tools"), ToolParam, slices)
    if tools != values.get("tools"):
        values = {**values, "tools": tools or None, "tool_choice": None}
    messages = values.get("messages")
    if not isinstance(messages, list):
        return values
    accepted: list[object] = []
    for message in messages:
        if isinstance(message, dict):
            content = _those_of(message.get("content"), AnthropicBlock, slices)
            if not content:
                continue
            message = {**message, "content": content}
        accepted.append(message)
    if not accepted:
        return {}
    return {**values, "messages": accepted}


def _those_of(items: object, kind: type[msgspec.Struct], slices: Slices) -> object:
    """Returns the items of a list that are of a kind; other values as they are."""
    if not isinstance(items, list):
        return items
    accepted: list[object] = []
    for item in items:
        slices.spend(1)
        try:
            msgspec.convert(item, kind)
        except (msgspec.ValidationError, RecursionError):
            continue
        accepted.append(item)
    return accepted
