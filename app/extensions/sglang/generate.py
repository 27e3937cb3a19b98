"""POST /generate: SGLang's native generation, and POST /abort_request. Start with `generate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from app.core.api.answer_limits import (
    ENTRY_BYTES,
    MAX_ANSWER_BYTES,
    TOKEN_BYTES,
    check_repeated,
)
from app.core.api.chat.media import BuiltPrompt
from app.core.api.completions import completion_prompt
from app.core.api.headers import RANK_HEADER, local_engine, pinned_engine
from app.core.api.identity import ResponseMeta
from app.core.base.clock.pause import Slices
from app.core.engine.request import Constraint
from app.core.protocol.decoding import Request, decode_embedded
from app.core.protocol.validation import ValidatedRequest
from app.core.server.http.errors import bad_request
from app.core.server.http.response import Response
from app.core.server.http.route import STREAM_MEDIA, Route, RouteDocs
from app.extensions.sglang.batches import Batch, PromptItem, batch_of
from app.extensions.sglang.errors import as_sglang_error, form_error, generate_error
from app.extensions.sglang.generate_protocol import GenerateRequest, decode_generate
from app.extensions.sglang.generate_writer import Choice, GenerateWriter, WriterOptions

if TYPE_CHECKING:
    from app.core.api.pipeline import RequestPipeline
    from app.core.engine.request import EngineRequest
    from app.core.protocol.completions import CompletionRequest
    from app.core.server.http.context import RequestContext

ID_BYTES = 16
"""Memory of a token id of a prompt in an answer, whose parts are joined once, in bytes."""
STEPS_PER_PROMPT = 10
"""Work of one prompt besides its tokens, in steps of `Slices`."""


class AbortRequest(Request, kw_only=True):
    """The body of ``POST /abort_request``."""

    rid: str = ""
    abort_all: bool = False


class Generation:
    """Handlers of the routes."""

    def __init__(self, pipeline: RequestPipeline) -> None:
        self._pipeline = pipeline

    def generate(self, context: RequestContext) -> Response:
        """The continuations of one or several prompts, whole or as a stream."""
        pipeline = self._pipeline
        body = decode_generate(pipeline.body.read(context), context.content_type)
        sampling = body.sampling()
        pipeline.responder.faults.inject(context, None)
        pipeline.responder.engine.check_accepting(1)
        try:
            return self._respond(body, batch_of(body, sampling), context)
        except Exception as error:
            if not body.stream:
                raise
            # SGLang has sent its 200 by now.
            failed = GenerateWriter([self._no_choice(context)], is_list=False)
            return pipeline.responder.broken(as_sglang_error(error), failed)

    def _respond(
        self,
        body: GenerateRequest,
        batch: Batch,
        context: RequestContext,
    ) -> Response:
        items = batch.items
        pipeline = self._pipeline
        engine = pipeline.responder.engine
        rank = None
        if body.rank is not None:
            rank = local_engine(body.rank, pipeline.live.current.server)
        elif RANK_HEADER in context.headers:
            rank = pinned_engine(context, pipeline.live.current.server, pipeline.rank)
        options = self._options(body, context)
        choices: list[Choice] = []
        prepared: list[PreparedPrompt] = []
        slices = Slices()
        for item in items:
            slices.spend(STEPS_PER_PROMPT)
            built: BuiltPrompt | None = None
            if prepared and item.prompt is items[len(prepared) - 1].prompt:
                built = prepared[-1].built  # `n` repeats a prompt
            prompt = self._prepare(body, item, built)
            prompt.accepted.engine = rank
            prepared.append(prompt)
            choices.append(Choice(item, prompt.meta.id, prompt.built.ids, options))
            if body.stream:
                check_events(prompt, item, body.return_prompt_token_ids)
        if not body.stream:
            check_answer(prepared, body.return_prompt_token_ids)
        if len(items) > 1:
            engine.check_admission(len(items))
        writer = GenerateWriter(choices, batch.is_list)
        requests: list[EngineRequest] = []
        for number, prompt in enumerate(prepared):
            slices.spend(STEPS_PER_PROMPT)
            for request in self._engine_requests(prompt, context, writer):
                requests.append(replace(request, index=number, num_choices=len(items)))
        return pipeline.responder.respond(requests, writer, body.stream, context)

    def _prepare(
        self, body: GenerateRequest, item: PromptItem, built: BuiltPrompt | None
    ) -> PreparedPrompt:
        """Validates a prompt, and converts it to tokens, unless it is `built` already."""
        pipeline = self._pipeline
        request = item.as_completion()
        request.priority = body.priority or 0
        request.stream = body.stream
        try:
            model = pipeline.models.resolve(item.adapter, "lora_path")
        except Exception as error:
            raise bad_request(as_sglang_error(error).message) from None
        max_model_len = pipeline.limits.max_model_len
        if not isinstance(item.prompt, str):
            check_lengths(len(item.prompt), item, max_model_len)
        if built is None:
            built = completion_prompt(pipeline, request, item.prompt)
        check_lengths(len(built.ids), item, max_model_len)
        accepted = ValidatedRequest(request, model, pipeline.limits)
        accepted.check_sampling([len(built.ids)])
        accepted.check_engine([built.ids])
        rid = item.rid
        if rid is None:
            rid = pipeline.identity.fresh_id() + pipeline.identity.fresh_id()
        meta = ResponseMeta(id=rid, created=0, model=model, fingerprint=None)
        return PreparedPrompt(accepted, built, meta, self._constraint(accepted))

    def _constraint(self, accepted: ValidatedRequest[CompletionRequest]) -> Constraint | None:
        form = accepted.structured_outputs
        if form is None:
            return None
        from app.core.api.chat.constraints import constraint_of, tag_of  # few requests have any

        schemas = self._pipeline.schemas
        if form.structural_tag is not None:
            return Constraint(grammar=tag_of(form.structural_tag, accepted.request, schemas))
        return constraint_of(form, schemas)

    def _engine_requests(
        self, prompt: PreparedPrompt, context: RequestContext, writer: GenerateWriter
    ) -> Sequence[EngineRequest]:
        pipeline = self._pipeline
        requests = pipeline.builder.build(
            prompt.accepted,
            prompt.meta,
            [prompt.built],
            context=context,
            constraint=prompt.constraint,
            writer=writer,
        )
        if pipeline.scripts is None:
            return requests
        return pipeline.scripts.direct(
            prompt.accepted.request, [prompt.built], requests, writer=writer, context=context
        )

    def _options(self, body: GenerateRequest, context: RequestContext) -> WriterOptions:
        pipeline = self._pipeline
        return WriterOptions(
            shows_texts=body.return_text_in_logprobs,
            shows_prompt=body.return_prompt_token_ids,
            eos_token_id=pipeline.tokenizer.eos_token_id,
            weights=pipeline.weights,
            token_texts=pipeline.tokenizer.token_texts,
            arrival_s=context.arrival_s,
        )

    def _no_choice(self, context: RequestContext) -> Choice:
        """Returns a choice of a request that is rejected."""
        body = GenerateRequest(text="")
        [item] = batch_of(body, body.sampling()).items
        return Choice(item, "", (), self._options(body, context))

    def abort(self, context: RequestContext) -> Response:
        """Ends a request by its ID, or all requests; their clients receive `abort`."""
        body = decode_embedded(
            self._pipeline.body.read(context), context.content_type, AbortRequest
        )
        ids = None if body.abort_all else frozenset((body.rid,))
        self._pipeline.responder.engine.interrupt(ids)
        return Response()


class PreparedPrompt(Struct, frozen=True):
    """A prompt that is ready for the engine."""

    accepted: ValidatedRequest[CompletionRequest]
    built: BuiltPrompt
    meta: ResponseMeta
    constraint: Constraint | None


def check_lengths(prompt_tokens: int, item: PromptItem, max_model_len: int) -> None:
    """Applies SGLang's rules for lengths in tokens. Raises ApiError 400."""
    if prompt_tokens >= max_model_len:
        raise bad_request(
            f"The input ({prompt_tokens} tokens) is longer than the model's context length "
            f"({max_model_len} tokens)."
        )
    requested = item.params.max_new_tokens
    if isinstance(requested, int) and requested + prompt_tokens > max_model_len:
        raise bad_request(
            f"Requested token count exceeds the model's maximum context length of {max_model_len} "
            f"tokens: {prompt_tokens} tokens of input and {requested} of completion."
        )
    if item.logprob_start > prompt_tokens:
        raise bad_request(
            f"logprob_start_len {item.logprob_start} is higher than the number of input tokens, "
            f"{prompt_tokens}."
        )


def check_events(prompt: PreparedPrompt, item: PromptItem, shows_prompt: bool) -> None:
    """Raises ApiError 400 for a stream whose events would repeat too much."""
    accepted = prompt.accepted
    prompt_tokens = len(prompt.built.ids)
    shown_tokens = max(0, prompt_tokens - max(0, item.logprob_start))
    entries = shown_tokens * accepted.entries_per_prompt_token
    if has_limit(accepted):
        entries += accepted.max_tokens[0] * accepted.entries_per_token
    check_repeated("top_logprobs_num", prompt_tokens if shows_prompt else 0, entries)


def check_answer(prompts: Sequence[PreparedPrompt], shows_prompts: bool) -> None:
    """Raises ApiError 400 when the whole answers to all prompts may be too large."""
    size = 0
    for prompt in prompts:
        accepted = prompt.accepted
        entries = len(prompt.built.ids) * accepted.entries_per_prompt_token
        if has_limit(accepted):
            tokens = accepted.max_tokens[0]
            size += tokens * TOKEN_BYTES
            entries += tokens * accepted.entries_per_token
        size += entries * ENTRY_BYTES
        if shows_prompts:
            size += len(prompt.built.ids) * ID_BYTES
    if size > MAX_ANSWER_BYTES:
        raise bad_request(
            f"The response would take {size >> 20} MiB, but the limit is {MAX_ANSWER_BYTES >> 20} "
            "MiB. Request fewer tokens, or set stream to true."
        )


def has_limit(accepted: ValidatedRequest[CompletionRequest]) -> bool:
    """Returns whether the reply may reach its limit of tokens. Other replies are short."""
    return accepted.requested is not None or accepted.request.ignore_eos


def generate_routes(pipeline: RequestPipeline) -> list[Route]:
    """Returns the routes."""
    handlers = Generation(pipeline)
    generate_docs = RouteDocs(
        body=(GenerateRequest,),
        example={"text": "hello", "sampling_params": {"max_new_tokens": 8}},
        media=STREAM_MEDIA,
    )
    abort_docs = RouteDocs(body=(AbortRequest,), example={"rid": "1"}, body_is_optional=True)
    return [
        Route(
            methods=("POST", "PUT"),
            path="/generate",
            handle=handlers.generate,
            on_error=generate_error,
            docs=generate_docs,
        ),
        Route(
            methods=("POST",),
            path="/abort_request",
            handle=handlers.abort,
            on_error=form_error,
            docs=abort_docs,
        ),
    ]
