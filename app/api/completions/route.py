"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence

from app.api.builder import Prompt
from app.api.completions.writer import CompletionResponseOptions, CompletionWriter, EchoedPrompt
from app.api.frontend import Frontend
from app.api.identity import address_of
from app.http.context import RequestContext
from app.http.errors import bad_request
from app.http.response import Response
from app.http.route import PlainHandler, Route, post
from app.protocol.completions import CompletionRequest, TokenIds
from app.protocol.validation.generation import ValidatedRequest

MOST_STREAMED = 50_000
"""Log probabilities of a prompt that a stream repeats in its first event: about 25 ms of work."""


def routes(frontend: Frontend, plain: PlainHandler | None = None) -> list[Route]:
    """The route of text completions; `plain` answers plain ones on the fast path."""

    def completions(context: RequestContext) -> Response:
        """The continuations of one or several prompts, whole or as a stream."""
        asked = frontend.decode(context, CompletionRequest)
        if asked.stream and asked.use_beam_search:
            raise bad_request("Beam search cannot be streamed.")
        accepted = frontend.admit(asked, context)
        if asked.suffix is not None:
            raise bad_request("This model cannot fill in before a suffix.", "suffix")
        if asked.prompt_embeds:
            raise bad_request("Prompts as embeddings are not enabled.", "prompt_embeds")
        prompts = [completion_prompt(frontend, asked, prompt) for prompt in asked.prompts()]
        _check_repeated(accepted, prompts)
        head = frontend.identity.head("cmpl", context, asked.request_id, accepted.model)
        shape = CompletionResponseOptions(
            **frontend.options(accepted),
            prompts=[_echoed(frontend, asked, prompt) for prompt in prompts],
            echo=bool(asked.echo),
            prompt_only=asked.max_tokens == 0,
            logprobs=asked.logprobs is not None,
            transfer=address_of(asked, frontend.identity, head, len(prompts[0].ids)) if prompts else None,
        )
        return frontend.submit(accepted, head, prompts, CompletionWriter(head, shape), context)

    return [
        post("/v1/completions", completions, plain=plain),
    ]


def _check_repeated(asked: ValidatedRequest[CompletionRequest], prompts: Sequence[Prompt]) -> None:
    """Raises ApiError 400 for a stream that repeats more log probabilities of a prompt than fit an event."""
    request, longest = asked.request, max((len(prompt.ids) for prompt in prompts), default=0)
    if not (request.stream and request.echo and request.logprobs is not None):
        return
    entries = longest * asked.entries_per_prompt_token
    if entries > MOST_STREAMED:
        raise bad_request(
            f"echo and logprobs would tell {entries} log probabilities of a prompt at once, "
            f"more than {MOST_STREAMED} for a stream.",
            "echo",
        )


def completion_prompt(frontend: Frontend, asked: CompletionRequest, prompt: str | TokenIds) -> Prompt:
    """One of the prompts as tokens; one of ids is echoed as its decimal ids (simulator.md 5.2)."""
    if isinstance(prompt, str):
        frontend.check_text(prompt)
        ids = frontend.fit(asked, frontend.tokenizer.encode(prompt, asked.add_special_tokens))
        return Prompt(ids, prompt, (("user", prompt),) if frontend.keeps_turns else ())
    return Prompt(frontend.fit(asked, prompt), ",".join(map(str, prompt)))


def _echoed(frontend: Frontend, asked: CompletionRequest, prompt: Prompt) -> EchoedPrompt:
    """What the answer may repeat: the text only with `echo`, the tokens only with log probabilities, too."""
    if asked.echo:
        frontend.slices.spend(len(prompt.ids))
    text = frontend.tokenizer.decode(prompt.ids) if asked.echo else ""
    texts = frontend.tokenizer.token_texts(prompt.ids) if asked.echo and asked.logprobs is not None else ()
    return EchoedPrompt(prompt.ids, text, texts)
