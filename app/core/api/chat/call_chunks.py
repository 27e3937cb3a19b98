"""Streams of chats with tools: chunks of tool calls, joined from bytes."""

from __future__ import annotations

from functools import cache, cached_property
from typing import TYPE_CHECKING, cast

from app.core.api.chat.call_form import CallForm
from app.core.api.chat.writer import DEFAULT_CALL_FORM, ChatWriter
from app.core.base.metrics.recorder import STREAMED_CALL
from app.core.protocol import chat as wire
from app.core.protocol.common import HOLE, encode

if TYPE_CHECKING:
    from app.core.api.choice_state import ChoiceState
    from app.core.engine.outputs import Part, Tokens
    from app.core.versions.shape import Shape


@cache
def plain_call(shape: Shape) -> list[bytes]:
    """Returns the bytes before the index of the choice, that of the call, the text, and the end."""
    function = wire.FunctionCall(arguments=HOLE)
    call = wire.ToolCall(index=cast("int", HOLE), function=function)
    delta = wire.Delta(content=None, tool_calls=[call])
    return shape.template(wire.ChunkChoice(HOLE, delta, token_ids=None))


CALL_FORMS = {
    "llama3_json": CallForm(null_content=False, is_joined=True, text_end=True),
    "llama4_json": CallForm(null_content=False, is_joined=True, text_end=True),
    "mistral": CallForm(null_content=False, is_joined=True),
    "pythonic": CallForm(null_content=False, is_joined=True, null_id=True, text_end=True),
    "qwen3_coder": CallForm(null_content=False, is_joined=True),
    "qwen3_xml": CallForm(null_content=False, is_joined=True),
}
"""Forms by the names of vLLM's parsers; other parsers have the form of Hermes models."""
REQUIRED_CALL_FORMS = {
    parser: form._replace(null_id=False, text_end=False) for parser, form in CALL_FORMS.items()
}
"""Forms of replies that have to call a tool."""


def call_form(tool_choice: object, parser: str) -> CallForm:
    """Returns the form of the tool calls of a reply, for the name of the parser."""
    forms = REQUIRED_CALL_FORMS
    if tool_choice in ("auto", None):
        forms = CALL_FORMS
    return forms.get(parser, DEFAULT_CALL_FORM)


class CallChatWriter(ChatWriter):
    """Writes the answer to a chat with tools.

    Most chunks of a call differ only in their text. `ChatWriter` renders the same bytes, one chunk
    at a time.
    """

    @cached_property
    def _calls_are_plain(self) -> bool:
        """True if tokens within a call have chunks that are constant but for their text."""
        options = self._options
        has_plain_form = options.call_form.null_content and options.weights is None
        return self._is_bare and has_plain_form and not options.beams

    def _render_tokens(self, output: Tokens) -> bytes:
        """Returns the chunks of tokens.

        The first token of a call with a name shows the name, the next ones the arguments; the last
        one of a choice has the finish reason.
        """
        part = output.part
        if part is None or part.kind != "call" or not self._calls_are_plain:
            return super()._render_tokens(output)
        if self.parser_runs is not None:
            self.parser_runs[STREAMED_CALL] += max(1, len(output.ids))
        choice = self.choices[output.index]
        texts = output.texts
        has_end = output.finish is not None
        start = 0
        chunks: list[bytes] = []
        if texts and part.name and choice.current_segment(part) is None:
            start = 1
        end = max(start, len(texts) - has_end)
        if start and len(texts) > 1 and not texts[0]:
            chunks.append(self._render_name(choice, output, part))
        elif start:
            chunks.append(self._render_token(output, 0))
        choice.tokens += len(output.ids[start:end])
        shown = list(filter(None, texts[start:end]))
        if shown:
            prefix, suffix = self._call_frame(output.index, part)
            chunks.append(prefix + (suffix + prefix).join(map(encode, shown)) + suffix)
        if has_end and (len(texts) > 1 or not start):
            chunks.append(self._render_token(output, max(0, len(texts) - 1)))
        return b"".join(chunks)

    def _render_name(self, choice: ChoiceState, output: Tokens, part: Part) -> bytes:
        """Returns the chunk of the first token of a call, which shows the name alone."""
        choice.tokens += len(output.ids[:1])
        segment = choice.open_segment(part)
        segment.id = part.id or self._options.new_call_id()
        function = wire.FunctionCall(part.name)
        call = wire.ToolCall(segment.id, "function", part.number, function)
        delta = wire.Delta(content=None, tool_calls=[call])
        chunk_choice = wire.ChunkChoice(output.index, delta, token_ids=None)
        return self._head + self.encode(chunk_choice) + self._chunk_end

    def around_arguments(self, index: int, part: Part) -> tuple[bytes, bytes] | None:
        """Returns the bytes around the text in the chunk of a token before or behind the name."""
        if not self._calls_are_plain:
            return None
        if part.name and self.choices[index].current_segment(part) is None:
            return None
        return self._call_frame(index, part)

    def _call_frame(self, index: int, part: Part) -> tuple[bytes, bytes]:
        before_index, before_number, before_text, choice_end = plain_call(self._options.shape)
        choice_start = before_index + b"%d" % index + before_number
        prefix = self._head + choice_start + b"%d" % part.number + before_text
        return prefix, choice_end + self._chunk_end
