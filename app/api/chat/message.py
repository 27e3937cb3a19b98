"""The whole message of a chat's choice, gathered from its events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from app.api.chat.options import ChatShape, image_block, text_block
from app.api.logprobs import chat_entries
from app.engine.outputs import Finish, Part, TokenLogprob, Tokens


@dataclass(slots=True)
class Call:
    """One tool call."""

    name: str
    arguments: str = ""


@dataclass(slots=True)
class WholeChoice:
    """One choice: what has been said, thought and called so far."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    reasoning_tokens: int = 0
    calls: list[Call] = field(default_factory=list)
    image: str | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: Finish | None = None

    def take(self, event: Tokens) -> None:
        """Take an event in."""
        self.ids += event.ids
        self.logprobs += event.logprobs or ()
        self.finish = event.finish
        if event.part is None:
            self.text += event.texts
        else:
            self._take_part(event, event.part)

    def _take_part(self, event: Tokens, part: Part) -> None:
        if part.kind == "reasoning":
            self.reasoning += event.texts
            self.reasoning_tokens += len(event.ids)
        elif part.kind == "image":
            self.image = "".join(event.texts)
        else:
            if part.number == len(self.calls):
                self.calls.append(Call(part.name))
            self.calls[part.number].arguments += "".join(event.texts)

    def body(self, index: int, shape: ChatShape) -> dict[str, Any]:
        """The choice as vLLM writes it, its keys in vLLM's order."""
        finish = self.finish or Finish("abort")
        hidden = shape.reasons and not shape.show_reasoning
        logprobs = None
        if shape.top_logprobs is not None and not hidden:
            logprobs = {"content": chat_entries(self.logprobs, shape.top_logprobs, shape.token_id_names)}
        return {
            "index": index,
            "message": self._message(shape),
            "logprobs": logprobs,
            "finish_reason": finish_reason(finish, bool(self.calls), shape),
            "stop_reason": finish.stop_reason,
            "token_ids": self.ids if shape.token_ids and not hidden else None,
            "routed_experts": None,
        }

    def _message(self, shape: ChatShape) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": shape.role,
            "content": self._content(shape),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
        }
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": shape.new_call_id(),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.calls
            ]
        message["reasoning"] = "".join(self.reasoning) or None if shape.show_reasoning else None
        return message

    def _content(self, shape: ChatShape) -> Any:
        text = shape.echo + "".join(self.text)
        if self.image is not None:
            return [*([text_block(text)] if text else ()), image_block(self.image)]
        return None if self.calls and not text and not shape.forced_tool else text


def finish_reason(finish: Finish, called: bool, shape: ChatShape) -> str:
    """A reply that called tools of its own choice, and was not cut short, ended for them."""
    return "tool_calls" if called and not shape.named_tool and finish.reason == "stop" else finish.reason
