"""Reads the texts of replies as messages of a chat."""

from collections.abc import Sequence

from app.core.api.pipeline import RequestPipeline
from app.core.engine.outputs import Piece
from app.core.protocol import chat as wire
from app.core.protocol.chat import ChatCompletionRequest
from app.core.protocol.options import NamedToolChoice
from app.extensions.scale_out.derender_parts import reader_of
from app.extensions.scale_out.rules import rules_of


class MessageReader:
    """Reads replies to `chat`; without a chat or a parser the whole text is the content.

    The prompt may have ended the thoughts of the reply.
    """

    def __init__(
        self,
        pipeline: RequestPipeline,
        chat: ChatCompletionRequest | None,
        prompt_ids: Sequence[int] | None,
    ) -> None:
        self._identity = pipeline.identity
        self._read = reader_of(pipeline, chat, prompt_ids, streams=False)
        self._has_parser = pipeline.limits.parses and chat is not None
        self._follows_chat = rules_of(pipeline).derenders_as_generated
        self._tool_choice: object = None
        self._is_single = False
        self._shows_thoughts = False
        if chat is not None:
            self._tool_choice = chat.tool_choice
            self._is_single = chat.parallel_tool_calls is False
            self._shows_thoughts = chat.include_reasoning

    @property
    def hides_tokens(self) -> bool:
        """Token ids would show thoughts that the chat hides."""
        return self._has_parser and not self._shows_thoughts

    @property
    def hides_logprobs(self) -> bool:
        """Log probabilities would show thoughts that the chat hides."""
        return self.hides_tokens and self._follows_chat

    def read(self, text: str) -> wire.ChatMessage:
        """Returns the message in a whole text."""
        pieces = self._read(text, True)
        calls = _calls(pieces)
        content = ""
        reasoning = ""
        for part, piece in pieces:
            if part is None:
                content += piece
            elif part.kind == "reasoning":
                reasoning += piece
            elif part.raw:
                content = part.raw  # the whole reply, where its last call is cut off
                calls = []
        message = wire.ChatMessage("assistant", content)
        is_forced = self._has_parser and self._tool_choice not in ("none", "auto", None)
        if not content and not is_forced and (calls or reasoning):
            message.content = None
        if calls:
            self._add_calls(message, calls)
        if reasoning and self._shows_thoughts:
            message.reasoning = reasoning
        return message

    def _add_calls(self, message: wire.ChatMessage, calls: Sequence[wire.FunctionCall]) -> None:
        new_id = self._identity.fresh_id
        if self._follows_chat:
            if self._tool_choice is None:
                return
            new_id = self._identity.fresh_call_id
            if self._is_single:
                calls = calls[:1]
        message.tool_calls = [
            wire.ToolCall(id=new_id(), type="function", function=call) for call in calls
        ]

    def finish_reason(self, reason: str | None, message: wire.ChatMessage) -> str:
        """Returns the reason of a chat for the end of a reply with this message."""
        reason = reason or "stop"
        is_named = isinstance(self._tool_choice, NamedToolChoice)
        if self._follows_chat and message.tool_calls and reason == "stop" and not is_named:
            return "tool_calls"
        return reason


def _calls(pieces: Sequence[Piece]) -> list[wire.FunctionCall]:
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for part, text in pieces:
        if part is not None and part.kind == "call" and not part.raw:
            names[part.number] = part.name
            arguments[part.number] = arguments.get(part.number, "") + text
    return [wire.FunctionCall(names[number], arguments[number]) for number in names]
