"""Plain completions, as the fast path answers them."""

from __future__ import annotations

from collections.abc import Sequence

from app.api.completions.writer import CompletionAnswer, CompletionShape, EchoedPrompt
from app.api.frontend import Frontend
from app.api.plain import MOST_TEXT_BYTES, PlainCompletion, PlainHandler, Recognised
from app.api.response_meta import Head
from app.protocol.completions import DEFAULT_MAX_TOKENS
from app.tokenization.memo import PromptMemo

MEMO_BYTES = 8 << 20


class PlainCompletions(PlainHandler[PlainCompletion]):
    """Knows prompts by their text."""

    id_prefix = "cmpl"

    def __init__(self, frontend: Frontend) -> None:
        super().__init__(frontend, PlainCompletion)
        self._memo = PromptMemo(MEMO_BYTES)

    def prompt_ids(self, request: PlainCompletion) -> Sequence[int] | None:
        text = request.prompt
        raw = text.encode()
        ids = self._memo.get(raw)
        if ids is None and 0 < len(raw) <= MOST_TEXT_BYTES:
            ids = self._frontend.tokenizer.encode(text, True)
            self._memo.put(raw, ids)
        return ids

    def limit(self, request: PlainCompletion, room: int) -> tuple[int, bool]:
        return (DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens), True

    def writer(self, recognised: Recognised, head: Head) -> CompletionAnswer:
        frontend, options = self._frontend, recognised.request.stream_options
        shape = CompletionShape(
            n=1,
            include_usage=frontend.force_usage or (options is not None and options.include_usage),
            continuous_usage=frontend.force_usage,
            prompt_details=frontend.prompt_details,
            prompts=(EchoedPrompt(recognised.prompt_ids),),
        )
        return CompletionAnswer(head, shape)
