"""`/inference/v1/generate` and its render routes: token ids, on request with their text, as in vLLM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

from msgspec import UNSET, UnsetType

from app.engine.core.lifecycle import WeightUpdates
from app.engine.core.outputs import EngineOutput, Tokens
from app.serving.api.chat.media import BuiltPrompt
from app.serving.api.generate import derender, render
from app.serving.api.identity import ResponseMeta, ResponseOptions, address_of
from app.serving.api.logprobs import ALL, ChatLogprobs, Entries, prompt_entries, rendered, token_id_entries
from app.serving.api.pipeline import RequestPipeline
from app.serving.api.writer import ChoiceState, ResponseWriter, places
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError, bad_request, malformed
from app.serving.http.response import DONE, Response, event_of, json_response
from app.serving.http.route import Handler, Route, post
from app.serving.protocol.common import (
    ChatLogprob,
    ECTransferParams,
    KVTransferParams,
    LogprobContent,
    PromptTokensDetails,
    TokenIdLogprob,
    Usage,
)
from app.serving.protocol.decoding import read_json
from app.serving.protocol.generate import (
    GenerateChoice,
    GenerateChunk,
    GenerateRequest,
    GenerateResponse,
    WeightVersion,
)


class GenerateResponseOptions(ResponseOptions, frozen=True, kw_only=True):
    prompt_ids: Sequence[int]
    text: bool = False
    logprobs: bool = False
    transfer: KVTransferParams | None = None
    encoded_media: ECTransferParams | None = None
    weights: Callable[[], str]
    """Returns the present version of the weights."""


class GenerateWriter(ResponseWriter):
    def __init__(self, meta: ResponseMeta, options: GenerateResponseOptions) -> None:
        super().__init__(options.n)
        self._meta = meta
        self._options = options
        self._mode = "text" if options.text else "tokens"
        self._entries: Callable[[Entries], Sequence[ChatLogprob | TokenIdLogprob]]
        self._entries = (
            ChatLogprobs(ALL, options.token_id_names).entries if options.text else token_id_entries
        )
        self._begun = False
        self._versions: list[list[WeightVersion]] = [[] for _ in self.choices]

    def _tokens(self, output: Tokens) -> bytes:
        self._note_weights(output)
        return b"".join([self._token(output, i) for i in places(output)])

    def closing(self) -> bytes:
        if not self._options.include_usage or self.has_failed:
            return DONE
        last = GenerateChunk(
            request_id=self._meta.id,
            usage=self._usage(self.choices, self._details(), UNSET),
            output_mode=self._mode,
            choices=(),
        )
        return event_of(last) + DONE

    def _token(self, output: Tokens, i: int) -> bytes:
        """Returns one event per token; an end without a token has one, too."""
        options, choice, ids = self._options, self.choices[output.index], output.ids[i : i + 1]
        finish = output.finish if i + 1 >= len(output.texts) else None
        choice.tokens += len(ids)
        first, self._begun = not self._begun, True
        shown = GenerateChoice(output.index, None, None, ids)
        if finish is not None:
            shown.finish_reason, shown.stop_reason = finish.reason, finish.stop_reason
            shown.weight_versions = self._versions[output.index]
        if options.text:
            shown.text = "".join(output.texts[i : i + 1])
        if options.logprobs:
            shown.logprobs = LogprobContent(self._entries((output.logprobs or ())[i : i + 1]))
        chunk = GenerateChunk(
            request_id=self._meta.id,
            usage=self._usage((choice,), None) if options.continuous_usage else None,
            prompt_token_ids=options.prompt_ids if first and options.token_ids else UNSET,
            output_mode=self._mode,
            choices=(shown,),
        )
        return event_of(chunk)

    def take(self, output: EngineOutput) -> None:
        if type(output) is Tokens:
            self._note_weights(output)
        super().take(output)

    def _note_weights(self, output: Tokens) -> None:
        spans, start, version = (
            self._versions[output.index],
            self.choices[output.index].tokens,
            self._options.weights(),
        )
        if not spans or spans[-1].version != version:
            spans.append(WeightVersion(version, start, start))
        spans[-1].end = start + len(output.ids)

    def _details(self) -> PromptTokensDetails | UnsetType:
        return PromptTokensDetails(self.told_cached) if self._options.prompt_details else UNSET

    def _usage(
        self,
        choices: Sequence[ChoiceState],
        details: PromptTokensDetails | None | UnsetType,
        more: None | UnsetType = None,
    ) -> Usage:
        usage = self._usage_of(len(self._options.prompt_ids), choices)
        usage.prompt_tokens_details, usage.completion_tokens_details = details, more
        return usage

    def whole(self) -> GenerateResponse:
        meta, options = self._meta, self._options
        details = PromptTokensDetails(self.told_cached, None, None) if options.prompt_details else None
        return GenerateResponse(
            request_id=meta.id,
            model=meta.model,
            created=meta.created,
            usage=self._usage(self.choices, details),
            prompt_logprobs=prompt_entries(self.prompt_logprobs),
            prompt_token_ids=options.prompt_ids if options.token_ids else None,
            kv_transfer_params=options.transfer,
            ec_transfer_params=options.encoded_media,
            output_mode=self._mode,
            choices=self.each_choice(self._choice),
        )

    def _choice(self, index: int, choice: ChoiceState) -> GenerateChoice:
        options, finish = self._options, choice.finish
        ids = choice.ids
        text = "".join(choice.texts) if options.text else UNSET
        logprobs = None
        if options.logprobs:
            logprobs = LogprobContent(rendered(choice.logprobs, self._entries))
        return GenerateChoice(
            index,
            finish.reason,
            finish.stop_reason,
            ids,
            weight_versions=self._versions[index],
            text=text,
            logprobs=logprobs,
        )


MEDIA_PARTS = ("image_url", "audio_url", "video_url")
"""Types of `content_parts` that are media; vLLM ignores other types."""
CLOSED = "Scale-out endpoints are disabled: this needs a server with --enable-scale-out."


def routes(
    pipeline: RequestPipeline, enabled: bool, weights: WeightUpdates, aborts: bool = False
) -> list[Route]:
    """Returns the routes. `enabled` is `enable-scale-out`; `aborts` adds POST /abort_requests without it."""

    def gated(handle: Handler) -> Handler:
        """Answers 403 unless scale-out is enabled."""

        @wraps(handle)
        def guarded(context: RequestContext) -> Response:
            if not enabled:
                raise ApiError(403, "PermissionDeniedError", CLOSED)
            return handle(context)

        return guarded

    def generate(context: RequestContext) -> Response:
        """Token ids for token ids."""
        body = pipeline.decode(context, GenerateRequest)
        asked = body.as_completion(pipeline.limits.max_model_len)
        accepted = pipeline.admit(asked, context)
        if not pipeline.settings.model.multimodal and any(
            part.get("type") in MEDIA_PARTS for part in body.content_parts or ()
        ):
            raise bad_request("The served model is not a multimodal model: it reads text alone.")
        ids = body.token_ids
        head = pipeline.identity.response_meta("generate-tokens", context, body.request_id, accepted.model)
        shape = GenerateResponseOptions(
            **pipeline.options(accepted, may_force_usage=False),
            prompt_ids=ids,
            text=body.output_mode == "text",
            logprobs=asked.logprobs is not None,
            transfer=address_of(asked, pipeline.identity, head, len(ids)),
            encoded_media=pipeline.encoded_media(body.mm_hashes),
            weights=lambda: weights.version,
        )
        writer = GenerateWriter(head, shape)
        if accepted.n > (most := pipeline.settings.scheduling.max_num_seqs):
            raise bad_request(f"n is at most max-num-seqs, {most}, got {accepted.n}")
        try:
            pipeline.limits.check_prompt(ids)
        except ApiError as error:
            if not body.stream:
                raise
            return pipeline.responder.broken(error, writer)
        prompt = BuiltPrompt(ids, pipeline.tokenizer.decode(ids, False))
        return pipeline.submit(accepted, head, [prompt], writer, context)

    def abort_requests(context: RequestContext) -> Response:
        """Ends requests by their ids, or all requests; their clients receive `abort`."""
        body = read_json(pipeline.body.read(context))
        if not isinstance(body, dict):
            raise malformed("The body must be a JSON object.")
        named = body.get("request_ids")
        if named and not isinstance(named, str | list | dict):
            raise malformed("request_ids must be a list")
        ids = _ids(body)
        found = pipeline.responder.engine.interrupt(frozenset(ids) if ids else None)
        return json_response({"status": "aborted", "aborted": len(ids) if ids else found})

    def abort_named_requests(context: RequestContext) -> Response:
        """Ends requests by their ids, with an empty answer."""
        body = read_json(pipeline.body.read(context))
        if not isinstance(body, dict):
            raise malformed("The body is not an object")
        if body.get("request_ids") is None:
            raise malformed("request_ids is missing")
        pipeline.responder.engine.interrupt(frozenset(_ids(body)))
        return Response()

    return [
        post("/inference/v1/generate", gated(generate)),
        *(
            replace(it, handle=gated(it.handle))
            for it in (*render.routes(pipeline), *derender.routes(pipeline))
        ),
        *([post("/abort_requests", abort_requests)] if enabled or aborts else []),
        post("/inference/v1/abort_requests", gated(abort_named_requests)),
    ]


def _ids(body: dict[str, Any]) -> list[str]:
    ids = body.get("request_ids")
    if isinstance(ids, str):
        return [ids] if ids else []
    return [each for each in ids if isinstance(each, str)] if isinstance(ids, list | dict) else []
