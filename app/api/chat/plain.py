"""Plain chats, as the fast path answers them."""

from __future__ import annotations

from app.api.chat.writer import ChatResponseOptions, ChatWriter
from app.api.frontend import Frontend
from app.api.identity import ResponseMeta
from app.api.plain import PlainHandler
from app.protocol.plain import PlainChat, PlainReader, Recognised
from app.tokenization.memo import KnownChats


class PlainChats(PlainHandler[PlainChat]):
    """Answers chats of which nothing special is asked."""

    id_prefix = "chatcmpl"

    def __init__(self, frontend: Frontend) -> None:
        self.known = KnownChats(frontend.tokenizer)
        length, most = frontend.limits.max_model_len, frontend.plain_prompt_tokens
        super().__init__(frontend, PlainReader(PlainChat, self.known.ids, length, most))

    def writer(self, recognised: Recognised[PlainChat], head: ResponseMeta) -> ChatWriter:
        frontend, options = self._frontend, recognised.request.stream_options
        shape = ChatResponseOptions(
            n=1,
            include_usage=frontend.force_usage or (options is not None and options.include_usage),
            continuous_usage=frontend.force_usage,
            prompt_details=frontend.prompt_details,
            prompt_ids=recognised.prompt_ids,
        )
        return ChatWriter(head, shape)
