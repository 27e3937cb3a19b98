"""Answers of Cohere's Chat API: one JSON body, or events that name their type in the data.

A message has content blocks (thinking and text) and tool calls, which are numbered separately. A
model without thinking blocks plans its tool calls: its reasoning is the tool plan.
"""

from collections.abc import Callable

from app.core.api.choice_state import Segment
from app.core.api.errors import as_stream_error
from app.core.api.identity import ResponseMeta
from app.core.engine.outputs import EngineOutput, Part, Started, Tokens
from app.core.protocol.coercion import JsonObject
from app.core.protocol.common import encode
from app.core.server.http.response import DONE
from app.shared.block_writer import BlockWriter

FINISH_REASONS = {"stop": "COMPLETE", "length": "MAX_TOKENS", "error": "ERROR"}
BLOCK_FIELDS = {"text": "text", "reasoning": "thinking"}
"""Type of a content block, which is also its field, by the kind of its segment."""
CALL_ID = "chatcmpl-tool-"


class CohereChatWriter(BlockWriter):
    """Writes the answer to one chat."""

    def __init__(
        self,
        meta: ResponseMeta,
        prompt_tokens: int,
        *,
        prompt_details: bool,
        is_reasoning_model: bool,
        new_id: Callable[[], str],
    ) -> None:
        """With `prompt_details` the usage has the number of cached tokens."""
        super().__init__(new_id)
        self._meta = meta
        self._prompt_tokens = prompt_tokens
        self._prompt_details = prompt_details
        self._is_reasoning_model = is_reasoning_model
        self._content_index = -1
        self._call_index = -1

    def _render_start(self, output: Started) -> bytes:
        self.record_start(output)
        return _event("message-start", id=self._meta.id, delta=_delta(role="assistant"))

    def _is_plan(self, segment: Segment) -> bool:
        return segment.kind == "reasoning" and not self._is_reasoning_model

    def _render_block_start(self, segment: Segment) -> bytes:
        if self._is_plan(segment):
            return b""
        if segment.part is not None and segment.kind == "call":
            self._call_index += 1
            call = _call(segment, arguments="")
            return _event("tool-call-start", index=self._call_index, delta=_delta(tool_calls=call))
        self._content_index += 1
        block_type = BLOCK_FIELDS[segment.kind]
        delta = _delta(content={"type": block_type, block_type: ""})
        return _event("content-start", index=self._content_index, delta=delta)

    def _render_texts(self, segment: Segment, output: Tokens) -> bytes:
        return b"".join([self._render_text(segment, text) for text in output.texts if text])

    def _render_text(self, segment: Segment, text: str) -> bytes:
        if self._is_plan(segment):
            return _event("tool-plan-delta", delta=_delta(tool_plan=text))
        if segment.kind == "call":
            delta = _delta(tool_calls={"function": {"arguments": text}})
            return _event("tool-call-delta", index=self._call_index, delta=delta)
        delta = _delta(content={BLOCK_FIELDS[segment.kind]: text})
        return _event("content-delta", index=self._content_index, delta=delta)

    def _render_block_end(self, segment: Segment) -> bytes:
        if self._is_plan(segment):
            return b""
        if segment.kind == "call":
            return _event("tool-call-end", index=self._call_index)
        return _event("content-end", index=self._content_index)

    def _segment_id(self, part: Part | None) -> str:
        if part is None or part.kind != "call":
            return ""
        return part.id or CALL_ID + self._new_id()

    def _render_failure(self, error: Exception) -> bytes:
        message = as_stream_error(error).message
        end = _event("message-end", delta={"error": message, "finish_reason": "ERROR"})
        return end + DONE

    def closing(self) -> bytes:
        """Returns the end of the stream."""
        if self.has_failed:
            return b""
        delta = {"finish_reason": self._finish_reason(), "usage": self._chat_usage()}
        end = _event("message-end", id=self._meta.id, delta=delta)
        return b"".join((self._close_block(), end, DONE))

    def collect(self, output: EngineOutput) -> None:
        """Collects an output for the whole answer, with its log probabilities."""
        if type(output) is Tokens and output.logprobs is not None:
            self.choices[0].logprobs.append(output.logprobs)
        super().collect(output)

    def whole(self) -> JsonObject:
        """Returns the whole answer, once all outputs are collected."""
        answer: JsonObject = {
            "id": self._meta.id,
            "finish_reason": self._finish_reason(),
            "message": self._message(),
            "usage": self._chat_usage(),
        }
        logprobs = []
        for entries in self.choices[0].logprobs:
            for entry in entries:
                logprobs.append(
                    {
                        "text": entry.token,
                        "token_ids": [entry.token_id],
                        "logprobs": [entry.logprob],
                    }
                )
        if logprobs:
            answer["logprobs"] = logprobs
        if self.transfer is not None:
            answer["kv_transfer_params"] = self.transfer
        return answer

    def _message(self) -> JsonObject:
        choice = self.choices[0]
        message: JsonObject = {"role": "assistant"}
        calls = [
            _call(segment, segment.text) for segment in choice.segments if segment.kind == "call"
        ]
        content: list[JsonObject] = []
        for segment in choice.segments:
            if segment.kind == "call":
                continue
            if calls and self._is_plan(segment):
                message["tool_plan"] = segment.text
                continue
            block_type = BLOCK_FIELDS[segment.kind]
            content.append({"type": block_type, block_type: segment.text})
        if calls:
            message["tool_calls"] = calls
        if content:
            message["content"] = content
        return message

    def _finish_reason(self) -> str:
        choice = self.choices[0]
        finish = choice.finish
        if finish.reason == "stop" and isinstance(finish.stop_reason, str):
            return "STOP_SEQUENCE"
        if finish.reason == "stop" and choice.called:
            return "TOOL_CALL"
        return FINISH_REASONS.get(finish.reason, "COMPLETE")

    def _chat_usage(self) -> JsonObject:
        prompt_tokens, tokens = self.usage.override(self._prompt_tokens, self.choices[0].tokens)
        counts = {"input_tokens": prompt_tokens, "output_tokens": tokens}
        usage: JsonObject = {"billed_units": counts, "tokens": counts}
        if self._prompt_details:
            usage["cached_tokens"] = self.reported_cached_tokens
        return usage


def _call(segment: Segment, arguments: str) -> JsonObject:
    assert segment.part is not None
    function = {"name": segment.part.name, "arguments": arguments}
    return {"id": segment.id, "type": "function", "function": function}


def _delta(**fields: object) -> JsonObject:
    return {"message": fields}


def _event(event_type: str, **fields: object) -> bytes:
    return b"data: %b\n\n" % encode({**fields, "type": event_type})
