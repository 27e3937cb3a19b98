"""Options of a model that computes: sampling, thoughts, and constraints on its text."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from app.core.engine.choice_request import TextForm, Thoughts
from app.core.engine.request import JsonSchema, ToolCalls
from app.core.engine.sampling import SIMULATED_FIELDS, SamplingDefaults
from app.core.protocol.options import StructuredOutputs
from app.core.protocol.validation import GenerationRequest
from app.core.server.http.errors import bad_request

ANY_OBJECT = '{"type": "object"}'
UNSUPPORTED_FIELDS = ("use_beam_search", "cache_hit_threshold", *SIMULATED_FIELDS)
"""Fields that no computing model supports."""
MAX_SEARCHED_TOKENS: Final = 32_768
"""Tokens at the end of a prompt that are searched for the last tag of thoughts."""


class ThoughtTokens(Struct, frozen=True):
    """The two tokens around a model's thoughts; `decode` returns the text of tokens."""

    begin_id: int
    end_id: int
    decode: Callable[[Sequence[int]], str]

    def after(self, prompt_ids: Sequence[int]) -> Thoughts | None:
        """Returns the thoughts after a prompt, or None if the prompt has closed them.

        The end of the prompt may have opened the thoughts.
        """
        tail = list(prompt_ids[-MAX_SEARCHED_TOKENS:])
        for position in range(len(tail) - 1, -1, -1):
            if tail[position] == self.begin_id:
                return Thoughts(end_id=self.end_id)
            if tail[position] == self.end_id:
                if self.decode(tail[position + 1 :]).strip():
                    break
                return None
        return Thoughts(end_id=self.end_id, begin_id=self.begin_id)


def text_form(
    structured_outputs: StructuredOutputs | None, calls: ToolCalls | None
) -> TextForm | None:
    """Returns the constraint on the text.

    Required tool calls are a list; the call of a named tool is the tool's arguments.
    """
    if calls is not None and calls.min_calls:
        return TextForm(json_schema=msgspec.json.encode(_calls_schema(calls)).decode())
    if structured_outputs is None:
        return None
    schema = structured_outputs.json
    if schema is not None:
        if not isinstance(schema, str):
            schema = msgspec.json.encode(schema).decode()
        return TextForm(json_schema=schema)
    if structured_outputs.json_object:
        return TextForm(json_schema=ANY_OBJECT)
    if structured_outputs.choice:
        return TextForm(choices=tuple(structured_outputs.choice))
    return TextForm(
        regex=structured_outputs.regex,
        grammar=structured_outputs.grammar,
        structural_tag=structured_outputs.structural_tag,
    )


def _calls_schema(calls: ToolCalls) -> JsonSchema:
    if calls.named:
        return calls.tools[0].schema
    call_schemas: list[JsonSchema] = []
    for tool in calls.tools:
        properties = {
            "name": {"type": "string", "enum": [tool.name]},
            "parameters": tool.schema,
        }
        call_schema = {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
        call_schemas.append(call_schema)
    schema = {"type": "array", "minItems": calls.min_calls, "items": {"anyOf": call_schemas}}
    if calls.max_calls == 1:
        schema["maxItems"] = 1
    return schema


class RealModel(Struct, frozen=True, kw_only=True):
    """Properties of a real model that the handling of requests depends on."""

    defaults: SamplingDefaults = SamplingDefaults()
    thoughts: ThoughtTokens | None = None

    def check(self, request: GenerationRequest, has_media: bool) -> None:
        """Raises ApiError 400 for features that only a simulation or vLLM's engine supports."""
        if has_media:
            raise bad_request(
                f"{request.model or 'The model'} is not a multimodal model: it accepts only text."
            )
        unsupported = [name for name in UNSUPPORTED_FIELDS if getattr(request, name)]
        transfer = request.kv_transfer_params or {}
        if transfer.get("do_remote_prefill") or transfer.get("do_remote_decode"):
            unsupported.append("kv_transfer_params")
        for name in unsupported:
            raise bad_request(f"This server's engine does not support {name}.", name)

    def form(
        self,
        structured_outputs: StructuredOutputs | None,
        calls: ToolCalls | None,
        prompt_ids: Sequence[int],
        *,
        thinks: bool,
    ) -> TextForm | None:
        """Returns the constraint on the text, which holds behind the thoughts of a prompt."""
        form = text_form(structured_outputs, calls)
        if form is None or not thinks or self.thoughts is None:
            return form
        return replace(form, thoughts=self.thoughts.after(prompt_ids))
