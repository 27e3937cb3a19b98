"""The output items of a response: messages, thoughts, function calls. Tokens of one part make one item."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from app.api.responses.logprobs import item_entries
from app.engine.outputs import Finish, Part, TokenLogprob, Tokens

TEXT, REASONING, CALL = "text", "reasoning", "call"
ID_PREFIXES = {TEXT: "msg_", REASONING: "rs_", CALL: "fc_"}


class Item(Struct):
    """One item and what it holds so far; `part` None is text, which makes a message."""

    part: Part | None
    id: str
    call_id: str = ""
    texts: list[str] = []
    logprobs: list[TokenLogprob] = []

    @property
    def kind(self) -> str:
        """`text`, `reasoning` or `call`."""
        return TEXT if self.part is None else self.part.kind

    @property
    def text(self) -> str:
        """All that is in it."""
        return "".join(self.texts)

    def opening(self) -> dict[str, Any]:
        """The item before anything is in it."""
        return self._told("in_progress", "", [])

    def whole(self, status: str | None, top_logprobs: int | None = None) -> dict[str, Any]:
        """The item with all that is in it; log probabilities only when `top_logprobs` are wanted."""
        text = self.text
        content = [self.content(text, top_logprobs)] if text or self.kind == REASONING else []
        return self._told(status, text, content)

    def content(self, text: str, top_logprobs: int | None = None) -> dict[str, Any]:
        """The one content part of a message or a thought, with `text` in it."""
        if self.kind == REASONING:
            return {"text": text, "type": "reasoning_text"}
        logprobs = None if top_logprobs is None else item_entries(self.logprobs, top_logprobs)
        return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}

    def _told(self, status: str | None, text: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        if self.part is None:
            said = {"content": content, "role": "assistant", "status": status}
            return {"id": self.id, **said, "type": "message", "phase": None}
        if self.kind == REASONING:
            thought = {"content": content or None, "encrypted_content": None, "status": status}
            return {"id": self.id, "summary": [], "type": "reasoning", **thought}
        return {
            "arguments": text,
            "call_id": self.call_id,
            "name": self.part.name,
            "type": "function_call",
            "id": self.id,
            "async": None,
            "caller": None,
            "namespace": None,
            "status": status,
        }


class Output:
    """What a response consists of so far; `new_id` draws the ids of its items."""

    def __init__(self, new_id: Callable[[], str], shows_reasoning: bool) -> None:
        self.items: list[Item] = []
        self.tokens = 0
        self.reasoning_tokens = 0
        self.finish = Finish("abort")
        self._new_id = new_id
        self._shows_reasoning = shows_reasoning

    def take(self, event: Tokens) -> Item | None:
        """Add the tokens of `event`; the item that they went to, or None when they show nothing."""
        self.tokens += len(event.ids)
        if event.finish is not None:
            self.finish = event.finish
        part = event.part
        if part is not None and part.kind == REASONING:
            self.reasoning_tokens += len(event.ids)
        if part is not None and (
            part.kind == "image" or (part.kind == REASONING and not self._shows_reasoning)
        ):
            return None
        item = self.items[-1] if self.items else None
        if item is None or item.part != part:
            if not _begins(event):
                return None
            item = self._new(part)
            self.items.append(item)
        item.texts += event.texts
        if part is None and event.logprobs is not None:
            item.logprobs += event.logprobs
        return item

    def complete(self) -> None:
        """See to it that there is an item: a reply that shows nothing is an empty message."""
        if not self.items:
            self.items.append(self._new(None))

    def _new(self, part: Part | None) -> Item:
        item = Item(part, self._new_id())
        if item.kind == CALL:
            item.call_id = "call_" + item.id
        item.id = ID_PREFIXES[item.kind] + item.id
        return item


def _begins(event: Tokens) -> bool:
    """True when tokens of another part open a new item; a call begins with its markup already."""
    if event.part is None:
        return event.logprobs is not None or any(event.texts)
    return event.part.kind == CALL or any(event.texts)
