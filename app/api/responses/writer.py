"""Responses as vLLM writes them: one JSON, or named server-sent events (vllm-api.md section 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from app.api.errors import as_stream_error
from app.api.responses.events import EventWriter
from app.api.responses.items import REASONING, Item, Output
from app.api.responses.response_object import Response, usage
from app.engine.outputs import EngineOutput, Failed, Started, Tokens

dumps = msgspec.json.Encoder().encode

ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""What an error of this status is called in a response; others are the server's."""


class ResponseShape(Struct, frozen=True, kw_only=True):
    """What one response tells besides its items."""

    response: Response
    """As `new_response` makes it."""
    prompt_ids: Sequence[int]
    top_logprobs: int | None = None
    """Alternatives to tell of each token of a message; None tells no log probabilities."""
    shows_reasoning: bool = True
    transfer: Mapping[str, Any] | None = None
    """`kv_transfer_params` of the answer."""
    encoded_media: Mapping[str, Any] | None = None
    """`ec_transfer_params` of the answer."""
    prompt_text: str | None = None
    """The answer repeats prompt and reply as texts and token ids (`enable_response_messages`)."""


class ResponseAnswer:
    """Writes one request's events down; `new_id` draws the ids of items.

    `ended` is told the response in its last state, unless the answer is whole and fails.
    """

    def __init__(
        self,
        shape: ResponseShape,
        new_id: Callable[[], str],
        ended: Callable[[Response], None] = lambda response: None,
    ) -> None:
        self._shape = shape
        self._ended = ended
        self._output = Output(new_id, shape.shows_reasoning)
        self._events = EventWriter(shape.top_logprobs)
        self._cached_tokens = 0
        self._message: Item | None = None
        """The message that goes on, if nothing but its texts is to be told."""
        self._plain = shape.top_logprobs is None and shape.prompt_text is None
        self._ids: list[int] = []
        self._opened = False
        self._failed = False

    def chunk(self, event: EngineOutput) -> bytes:
        message = self._message
        if message is None or type(event) is not Tokens or event.part is not None or event.finish is not None:
            return b"".join(self.events(event))
        if len(event.texts) != 1 or not event.texts[0]:
            return b"".join(self.events(event))
        # Nearly every event of a paced stream comes here.
        self._output.tokens += 1
        message.texts += event.texts
        return self._events.delta(event.texts[0])

    def closing(self) -> bytes:
        return b"".join(self.last_events())

    def body(self, events: Iterable[EngineOutput]) -> bytes:
        for event in events:
            if type(event) is Tokens:
                self._take(event)
            elif type(event) is Started:
                self._cached_tokens = event.cached_tokens
            elif type(event) is Failed:
                raise event.error
        self._output.complete()
        return dumps(self._end())

    def opening(self) -> list[bytes]:
        """The events that a stream begins with; none when they are told already."""
        if self._opened:
            return []
        self._opened = True
        response = self._shape.response
        return [self._events.event(kind, response=response) for kind in ("created", "in_progress")]

    def events(self, event: EngineOutput) -> list[bytes]:
        """The server-sent events that tell of `event`, one by one."""
        if type(event) is Tokens:
            item = self._take(event)
            if item is None:
                return []
            self._message = item if self._plain and item.part is None else None
            return [*self._events.tokens(item, event)]
        if type(event) is Started:
            self._cached_tokens = event.cached_tokens
            return self.opening()
        assert type(event) is Failed
        self._failed = True
        response = {**self._shape.response, "status": "failed", "error": _error(event.error)}
        self._ended(response)
        return [*self.opening(), self._events.event("failed", response=response)]

    def last_events(self) -> list[bytes]:
        """What ends the stream, one by one."""
        if self._failed:
            return []
        told = [*self._events.closing()]
        if not self._output.items:
            self._output.complete()
            told += self._events.empty(self._output.items[0])
        response = self._end()
        return [*told, self._events.event("completed", response=response)]

    def _take(self, event: Tokens) -> Item | None:
        if self._shape.prompt_text is not None:
            self._ids += event.ids
        return self._output.take(event)

    def _end(self) -> Response:
        """The response when all has been said, told to `ended`. Thoughts have no status in it, as in vLLM."""
        shape, output = self._shape, self._output
        status = {"length": "incomplete", "abort": "cancelled"}.get(output.finish.reason, "completed")
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        items = [
            item.whole(None if item.kind == REASONING else "completed", shape.top_logprobs)
            for item in output.items
        ]
        used = usage(len(shape.prompt_ids), self._cached_tokens, output.tokens, output.reasoning_tokens)
        response = {
            **shape.response,
            "incomplete_details": reason,
            "output": items,
            "status": status,
            "usage": used,
            "kv_transfer_params": shape.transfer,
            "ec_transfer_params": shape.encoded_media,
            **self._messages(),
        }
        self._ended(response)
        return response

    def _messages(self) -> dict[str, Any]:
        """Prompt and reply as they look to the model, if that was asked for."""
        prompt = self._shape.prompt_text
        if prompt is None:
            return {}
        said = "".join(item.text for item in self._output.items)
        return {
            "input_messages": [_message(prompt, self._shape.prompt_ids)],
            "output_messages": [_message(said, self._ids)],
        }


def _message(text: str, ids: Sequence[int]) -> dict[str, Any]:
    return {"message": text, "tokens": ids, "type": "raw_message_tokens"}


def _error(error: Exception) -> dict[str, str]:
    """`error` of a response that has failed."""
    known = as_stream_error(error)
    # A message may quote a lone surrogate of the client.
    message = known.message.encode("utf-8", "replace").decode()
    return {"code": ERROR_CODES.get(known.status, "server_error"), "message": message}
