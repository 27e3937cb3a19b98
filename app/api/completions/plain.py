"""Plain completions, as the fast path answers them."""

from __future__ import annotations

from app.api.completions.writer import CompletionResponseOptions, CompletionWriter, EchoedPrompt
from app.api.frontend import Frontend
from app.api.identity import ResponseMeta
from app.api.plain import PlainHandler
from app.protocol.plain import PlainCompletion, PlainReader, Recognised
from app.tokenization.memo import KnownTexts


class PlainCompletions(PlainHandler[PlainCompletion]):
    """Answers completions of which nothing special is asked."""

    id_prefix = "cmpl"

    def __init__(self, frontend: Frontend) -> None:
        self.known = KnownTexts(frontend.tokenizer)
        length, most = frontend.limits.max_model_len, frontend.plain_prompt_tokens
        super().__init__(frontend, PlainReader(PlainCompletion, self.known.ids, length, most))

    def writer(self, recognised: Recognised[PlainCompletion], head: ResponseMeta) -> CompletionWriter:
        frontend, options = self._frontend, recognised.request.stream_options
        shape = CompletionResponseOptions(
            n=1,
            include_usage=frontend.force_usage or (options is not None and options.include_usage),
            continuous_usage=frontend.force_usage,
            prompt_details=frontend.prompt_details,
            prompts=(EchoedPrompt(recognised.prompt_ids),),
        )
        return CompletionWriter(head, shape)
