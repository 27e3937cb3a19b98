"""Plain chats, as the fast path answers them."""

from __future__ import annotations

from collections.abc import Sequence

from app.api.chat.options import ChatShape
from app.api.chat.writer import ChatAnswer
from app.api.frontend import Frontend
from app.api.plain import PlainChat, PlainHandler, Recognised, short_chat
from app.api.response_meta import Head
from app.tokenization.memo import PromptMemo

MEMO_BYTES = 8 << 20


class PlainChats(PlainHandler[PlainChat]):
    """Knows the prompts of conversations by the bytes of their messages."""

    id_prefix = "chatcmpl"

    def __init__(self, frontend: Frontend) -> None:
        super().__init__(frontend, PlainChat)
        self._memo = PromptMemo(MEMO_BYTES)

    def prompt_ids(self, request: PlainChat) -> Sequence[int] | None:
        raw = bytes(request.messages)
        ids = self._memo.get(raw)
        if ids is None:
            ids = short_chat(self._frontend, raw)
            if ids is not None:
                self._memo.put(raw, ids)
        return ids

    def limit(self, request: PlainChat, room: int) -> tuple[int, bool]:
        most = request.max_completion_tokens
        if most is None:
            most = request.max_tokens
        return (room, False) if most is None else (most, True)

    def writer(self, recognised: Recognised, head: Head) -> ChatAnswer:
        frontend, options = self._frontend, recognised.request.stream_options
        shape = ChatShape(
            n=1,
            include_usage=frontend.force_usage or (options is not None and options.include_usage),
            continuous_usage=frontend.force_usage,
            prompt_details=frontend.prompt_details,
            prompt_ids=recognised.prompt_ids,
        )
        return ChatAnswer(head, shape)
