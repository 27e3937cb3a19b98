"""`/inference/v1/generate` and its render routes:

token ids, on request with their text, as in vLLM.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps

from msgspec import UNSET, UnsetType

from app.engine.core.lifecycle import WeightUpdates
from app.engine.core.outputs import EngineOutput, TokenLogprob, Tokens
from app.serving.api.chat.media import BuiltPrompt
from app.serving.api.choice_state import ChoiceState
from app.serving.api.generate import derender, render
from app.serving.api.identity import ResponseMeta, ResponseOptions
from app.serving.api.logprobs import ALL, TokenNames, prompt_entries, rendered, token_id_entry
from app.serving.api.pipeline import RequestPipeline
from app.serving.api.writer import ResponseWriter
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError, bad_request, forbidden, malformed
from app.serving.http.response import DONE, Response, event_of, json_response
from app.serving.http.route import STREAM_MEDIA, Handler, Route, RouteDocs, post
from app.serving.protocol import common
from app.serving.protocol import generate as wire
from app.serving.protocol.common import PromptTokensDetails, Usage
from app.serving.protocol.decoding import read_json


class GenerateResponseOptions(ResponseOptions, frozen=True, kw_only=True):
    prompt_ids: Sequence[int]
    text: bool = False
    logprobs: bool = False
    weights: Callable[[], str]


class GenerateWriter(ResponseWriter):
    def __init__(self, meta: ResponseMeta, options: GenerateResponseOptions) -> None:
        super().__init__(options.n)
        self._meta, self._options = meta, options
        self._mode = "text" if options.text else "tokens"
        self._entry: Callable[[TokenLogprob], common.ChatLogprob | common.TokenIdLogprob]
        self._entry = (
            TokenNames(ALL, options.token_id_names).chat_entry if options.text else token_id_entry
        )
        self._begun = False
        self._versions: list[list[wire.WeightVersion]] = [[] for _ in self.choices]

    def _render_tokens(self, output: Tokens) -> bytes:
        self._note_weights(output)
        number = max(
            len(output.texts), output.finish is not None
        )  # an end without a token has an event, too
        return b"".join([self._token(output, i) for i in range(number)])

    def _token(self, output: Tokens, i: int) -> bytes:
        options, choice, ids = self._options, self.choices[output.index], output.ids[i : i + 1]
        finish = output.finish if i + 1 >= len(output.texts) else None
        choice.tokens += len(ids)
        first, self._begun = not self._begun, True
        shown = wire.GenerateChoice(output.index, None, None, ids)
        if finish is not None:
            shown.finish_reason, shown.stop_reason = finish.reason, finish.stop_reason
            shown.weight_versions = self._versions[output.index]
        if options.text:
            shown.text = "".join(output.texts[i : i + 1])
        if options.logprobs:
            shown.logprobs = common.LogprobContent(
                [*map(self._entry, (output.logprobs or ())[i : i + 1])]
            )
        usage = None
        if options.continuous_usage:
            usage = self._count_usage(len(options.prompt_ids), (choice,), None)
        prompt_ids = options.prompt_ids if first and options.token_ids else UNSET
        return event_of(wire.GenerateChunk(self._meta.id, usage, prompt_ids, self._mode, (shown,)))

    def closing(self) -> bytes:
        options = self._options
        if not options.include_usage or self.has_failed:
            return DONE
        usage = self._total_usage(UNSET)
        return event_of(wire.GenerateChunk(self._meta.id, usage, UNSET, self._mode, ())) + DONE

    def collect(self, output: EngineOutput) -> None:
        if type(output) is Tokens:
            self._note_weights(output)
        super().collect(output)

    def _note_weights(self, output: Tokens) -> None:
        spans, start = self._versions[output.index], self.choices[output.index].tokens
        version = self._options.weights()
        if not spans or spans[-1].version != version:
            spans.append(wire.WeightVersion(version, start, start))
        spans[-1].end = start + len(output.ids)

    def _total_usage(self, missing: None | UnsetType) -> Usage:
        usage = self._count_usage(len(self._options.prompt_ids), self.choices, missing)
        if self._options.prompt_details:
            usage.prompt_tokens_details = PromptTokensDetails(
                self.reported_cached_tokens, missing, missing
            )
        return usage

    def whole(self) -> wire.GenerateResponse:
        meta, options = self._meta, self._options
        return wire.GenerateResponse(
            request_id=meta.id,
            model=meta.model,
            created=meta.created,
            usage=self._total_usage(None),
            prompt_logprobs=prompt_entries(self.prompt_logprobs),
            prompt_token_ids=options.prompt_ids if options.token_ids else None,
            kv_transfer_params=self.transfer,
            ec_transfer_params=self.encoded_media,
            output_mode=self._mode,
            choices=self.render_choices(self._choice),
        )

    def _choice(self, index: int, choice: ChoiceState) -> wire.GenerateChoice:
        options, finish = self._options, choice.finish
        shown = wire.GenerateChoice(index, finish.reason, finish.stop_reason, choice.ids)
        shown.weight_versions = self._versions[index]
        if options.text:
            shown.text = choice.texts_by_kind()["text"]
        if options.logprobs:
            shown.logprobs = common.LogprobContent(rendered(choice.logprobs, self._entry))
        return shown


def check_needs_no_tokenizer(body: wire.GenerateRequest) -> None:
    """Raises ApiError 400 for a request whose answer needs texts of tokens, which tokens-only has
    not.
    """
    if body.sampling_params.stop:
        raise bad_request(
            "This server runs with --tokens-only, which has no stop strings: use stop_token_ids, or look "
            "for stop strings where the tokens become text."
        )
    if body.output_mode == "text":
        raise bad_request(
            "output_mode text requires a tokenizer, which this server has not (--tokens-only): use "
            "output_mode tokens."
        )


MEDIA_PARTS = ("image_url", "audio_url", "video_url")
"""Types of `content_parts` that are media; vLLM ignores other types."""


def routes(
    pipeline: RequestPipeline, enabled: bool, weights: WeightUpdates, aborts: bool = False
) -> list[Route]:
    """Returns the routes.

    `enabled` is `enable-scale-out`; `aborts` adds POST /abort_requests without it.
    """
    interrupt = pipeline.responder.engine.interrupt

    def gated(handle: Handler) -> Handler:
        @wraps(handle)
        def guarded(context: RequestContext) -> Response:
            if not enabled:
                raise forbidden("Scale-out endpoints need --enable-scale-out.")
            return handle(context)

        return guarded

    def generate(context: RequestContext) -> Response:
        """Token ids for token ids."""
        body = pipeline.decode(context, wire.GenerateRequest)
        ids, settings = body.token_ids, pipeline.settings
        asked = body.as_completion(pipeline.limits.max_model_len)
        accepted = pipeline.admit(asked, context)
        has_media = any(part.get("type") in MEDIA_PARTS for part in body.content_parts or ())
        if has_media and not settings.model.multimodal:
            raise bad_request("The served model is not a multimodal model: it reads text alone.")
        head = pipeline.identity.response_meta(
            "generate-tokens", context, body.request_id, accepted.model
        )
        shape = GenerateResponseOptions(
            **pipeline.options(accepted, may_force_usage=False),
            prompt_ids=ids,
            text=body.output_mode == "text",
            logprobs=asked.logprobs is not None,
            weights=lambda: weights.version,
        )
        writer = GenerateWriter(head, shape)
        writer.encoded_media = pipeline.encoded_media(body.mm_hashes)
        if accepted.n > (most := settings.scheduling.max_num_seqs):
            raise bad_request(f"n is at most max-num-seqs, {most}, got {accepted.n}")
        if settings.api.tokens_only:
            check_needs_no_tokenizer(body)
        try:
            pipeline.limits.check_prompt(ids)
        except ApiError as error:
            if not body.stream:
                raise
            return pipeline.responder.broken(error, writer)
        prompt = BuiltPrompt(ids, pipeline.tokenizer.decode(ids, False))
        return pipeline.submit(accepted, head, [prompt], writer, context)

    def named(context: RequestContext, is_needed: bool) -> list[str]:
        body = read_json(pipeline.body.read(context))
        given = body.get("request_ids") if isinstance(body, dict) else None
        if not isinstance(body, dict) or given is None and is_needed:
            raise malformed("The body must be an object with request_ids.")
        if given and not isinstance(given, str | list | dict) and not is_needed:
            raise malformed("request_ids must be a list")
        given = [given] if given and isinstance(given, str) else given
        return (
            [each for each in given if isinstance(each, str)]
            if isinstance(given, list | dict)
            else []
        )

    def abort_requests(context: RequestContext) -> Response:
        """Ends requests by their ids, or all requests; their clients receive `abort`."""
        ids = named(context, False)
        found = interrupt(frozenset(ids) if ids else None)
        return json_response({"status": "aborted", "aborted": len(ids) if ids else found})

    def abort_named_requests(context: RequestContext) -> Response:
        """Ends requests by their ids, with an empty answer."""
        interrupt(frozenset(named(context, True)))
        return Response()

    beside = (*render.routes(pipeline), *derender.routes(pipeline))
    generate_docs = RouteDocs(
        body=(wire.GenerateRequest,),
        example={"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 5}},
        answer=wire.GenerateResponse,
        media=STREAM_MEDIA,
    )
    abort_docs = RouteDocs(
        body=(wire.AbortRequest,),
        example={"request_ids": ["cmpl-1"]},
        body_is_optional=True,
    )
    served = [post("/inference/v1/generate", gated(generate), docs=generate_docs)]
    served += [replace(route, handle=gated(route.handle)) for route in beside]
    if enabled or aborts:
        served.append(post("/abort_requests", abort_requests, docs=abort_docs))
    abort_named = gated(abort_named_requests)
    served.append(post("/inference/v1/abort_requests", abort_named, docs=abort_docs))
    return served
