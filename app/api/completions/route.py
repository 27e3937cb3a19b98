"""POST /v1/completions."""

from __future__ import annotations

from flask import Blueprint, request

from app.api.builder import Prompt
from app.api.completions.writer import CompletionResponseOptions, CompletionWriter, EchoedPrompt
from app.api.door import Door
from app.api.kv_transfer import address_of
from app.http.errors import bad_request
from app.http.response import Reply
from app.protocol.completions import CompletionRequest, TokenIds


def blueprint(door: Door) -> Blueprint:
    routes = Blueprint("completions", __name__)

    @routes.post("/v1/completions")
    def completions() -> Reply:
        """The continuations of one or several prompts, whole or as a stream."""
        environ = request.environ
        asked = door.decode(environ, CompletionRequest)
        if asked.stream and asked.use_beam_search:
            raise bad_request("Beam search cannot be streamed.")
        model = door.enter(asked, environ)
        if asked.suffix is not None:
            raise bad_request("This model cannot fill in before a suffix.", "suffix")
        if asked.prompt_embeds:
            raise bad_request("Prompts as embeddings are not enabled.", "prompt_embeds")
        prompts = [completion_prompt(door, asked, prompt) for prompt in asked.prompts()]
        head = door.identity.head("cmpl", environ, asked.request_id, model)
        shape = CompletionResponseOptions(
            **door.shape(asked),
            prompts=[_echoed(door, asked, prompt) for prompt in prompts],
            echo=bool(asked.echo),
            prompt_only=asked.max_tokens == 0,
            logprobs=asked.logprobs is not None,
            transfer=address_of(asked, door.identity, len(prompts[0].ids)) if prompts else None,
        )
        return door.play(asked, head, prompts, CompletionWriter(head, shape), environ)

    return routes


def completion_prompt(door: Door, asked: CompletionRequest, prompt: str | TokenIds) -> Prompt:
    """One of the prompts as tokens; one of ids is echoed as its decimal ids (simulator.md 5.2)."""
    if isinstance(prompt, str):
        door.check_text(prompt)
        ids = door.fit(asked, door.tokenizer.encode(prompt, asked.add_special_tokens))
        return Prompt(ids, prompt, (("user", prompt),) if door.keeps_turns else ())
    return Prompt(door.fit(asked, prompt), ",".join(map(str, prompt)))


def _echoed(door: Door, asked: CompletionRequest, prompt: Prompt) -> EchoedPrompt:
    """What the answer may repeat: the text only with `echo`, the tokens only with log probabilities, too."""
    text = door.tokenizer.decode(prompt.ids) if asked.echo else ""
    texts = door.tokenizer.token_texts(prompt.ids) if asked.echo and asked.logprobs is not None else ()
    return EchoedPrompt(prompt.ids, text, texts)
