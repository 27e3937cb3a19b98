"""Generate: streams tokens for a prompt of tokens or a text."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from math import isnan
from typing import cast

import msgspec

from app.serving.api.chat.media import BuiltPrompt, Features
from app.serving.api.grpc.messages import SERVICE, Proto, engine, read
from app.serving.api.grpc.writer import RpcResponder, RpcWriter
from app.serving.api.identity import ResponseMeta, address_of
from app.serving.api.pipeline import RequestPipeline, check_repeated
from app.serving.http.context import RequestContext
from app.serving.http.errors import bad_request
from app.serving.http.rpc import RpcMethod, RpcResponse
from app.serving.protocol import rules
from app.serving.protocol.coercion import JsonObject
from app.serving.protocol.completions import CompletionRequest
from app.serving.protocol.options import MAX_STOP_STRINGS, StructuredOutputs
from app.serving.protocol.validation import check_prompt_length

MODALITIES = ("image", "image", "audio", "video")
"""Modalities by their numbers; a message without one means images."""
SAME = (
    *("top_k", "min_p", "frequency_penalty", "presence_penalty", "min_tokens", "skip_special_tokens"),
    *("spaces_between_special_tokens", "ignore_eos", "include_stop_str_in_output"),
)
"""Fields of `SamplingParams` that have the same names in a completion."""
ONE_UNLESS_SET = ("n", "top_p", "repetition_penalty")
"""Fields that are 1 where a message omits them or has 0."""
OPTIONAL: Mapping[str, float | None] = {
    **{"temperature": 1.0, "logprobs": None, "prompt_logprobs": None},
    **{"seed": None, "truncate_prompt_tokens": None, "max_tokens": None},
}
"""Fields with presence, and their values when unset."""


def generate_method(pipeline: RequestPipeline) -> RpcMethod:
    at = pipeline.responder
    responder = RpcResponder(at.engine, at.load, at.headers, 0.0)
    most = pipeline.limits.max_model_len

    def generate(context: RequestContext) -> RpcResponse:
        message = read(context, engine.GenerateRequest)
        prompt = _given_prompt(message, most)
        request = completion_of(message, prompt, most)
        accepted = pipeline.admit(request, context)
        if message.HasField("data_parallel_rank") and message.data_parallel_rank != pipeline.rank:
            text = f"data_parallel_rank is {message.data_parallel_rank}, but this is rank {pipeline.rank}."
            raise bad_request(text, "data_parallel_rank")
        built = _built_prompt(pipeline, message, request, prompt)
        check_repeated("prompt_logprobs", 0, len(built.ids) * accepted.entries_per_prompt_token)
        request_id = message.request_id or pipeline.identity.fresh_id()
        meta = ResponseMeta(request_id, pipeline.identity.now_s(), accepted.model, "")
        transfer = address_of(request, pipeline.identity, meta, len(built.ids))
        writer = RpcWriter(accepted.n, request, built.ids, transfer)
        response = pipeline.submit(accepted, meta, [built], writer, context, responder=responder)
        return cast(RpcResponse, response)

    return RpcMethod(f"/{SERVICE}/Generate", generate)


def _given_prompt(message: Proto, most: int) -> str | list[int]:
    """Returns the text, or the first `most` tokens. ApiError 400 without any, or for too many tokens."""
    kind = message.WhichOneof("input")
    if kind is None or kind == "tokenized" and not message.tokenized.input_ids:
        raise bad_request("a prompt is needed: tokenized, or text", "input")
    if kind == "text":
        return str(message.text)
    tokens = message.tokenized.input_ids
    if not message.sampling_params.HasField("truncate_prompt_tokens"):
        check_prompt_length(len(tokens), most)
    return list(tokens[:most])


def _built_prompt(
    pipeline: RequestPipeline, message: Proto, request: CompletionRequest, given: str | list[int]
) -> BuiltPrompt:
    if isinstance(given, str):
        features_of(message, 0)
        pipeline.check_text(given)
        ids = pipeline.fit(request, pipeline.tokenizer.encode(given, True))
        return BuiltPrompt(ids, given, (("user", given),) if pipeline.keeps_turns else ())
    ids = pipeline.fit(request, given)
    return BuiltPrompt(ids, pipeline.tokenizer.decode(ids, False), (), features_of(message, len(ids)))


def completion_of(message: Proto, prompt: str | list[int], max_model_len: int) -> CompletionRequest:
    """Returns a message as a completion of `prompt`. ApiError 400 for an invalid or unsupported field."""
    at = message.sampling_params
    given: dict[str, Proto] = {name: getattr(at, name) for name in SAME}
    given |= {name: getattr(at, name) or 1 for name in ONE_UNLESS_SET}
    given |= {name: getattr(at, name) if at.HasField(name) else usual for name, usual in OPTIONAL.items()}
    if given["max_tokens"] is None:
        is_whole = isinstance(prompt, list) and given["truncate_prompt_tokens"] is None
        given["max_tokens"] = max_model_len - (len(prompt) if is_whole else 0)
    for name, least in (("max_tokens", 1), ("truncate_prompt_tokens", -1)):
        if given[name] is not None and given[name] < least:
            raise bad_request(f"{name} must be at least {least}, got {given[name]}", name)
    if len(at.stop) > MAX_STOP_STRINGS:
        raise bad_request(f"stop has {len(at.stop)} texts, at most {MAX_STOP_STRINGS} are possible", "stop")
    if any(map(isnan, at.logit_bias.values())):
        raise bad_request("logit_bias has a value that is no number", "logit_bias")
    for name in ("logprobs", "prompt_logprobs"):
        rules.check_number(name, given[name])
        if (given[name] or 0) < -1:
            raise bad_request(f"{name} must be 0 or more, or -1", name)
    return CompletionRequest(
        prompt=prompt,  # type: ignore[arg-type]  # a list is invariant
        stop=list(at.stop),
        stop_token_ids=list(at.stop_token_ids),
        logit_bias={str(token): bias for token, bias in at.logit_bias.items()} or None,
        structured_outputs=_constraint_of(at),
        stream=message.stream,
        request_id=message.request_id,
        kv_transfer_params=_transfer_of(message),
        **given,
    )


def _constraint_of(params: Proto) -> StructuredOutputs | None:
    """Returns the form of the reply. No thoughts precede: the form holds from the first token."""
    name = params.WhichOneof("constraint")
    if name is None or name == "json_object" and not params.json_object:
        return None
    value = list(params.choice.choices) if name == "choice" else getattr(params, name)
    given: dict[str, Proto] = {"json" if name == "json_schema" else name: value}
    form = StructuredOutputs(**given)
    rules.check_structured_outputs(form, "structured_outputs")
    return form


def _transfer_of(message: Proto) -> JsonObject | None:
    """Reads `kv_transfer_params` from JSON or the older typed field. ApiError 400 if JSON is no object."""
    if message.HasField("kv_transfer_params_json"):
        try:
            params = msgspec.json.decode(message.kv_transfer_params_json)
        except (msgspec.DecodeError, RecursionError):
            params = None
        if not isinstance(params, dict):
            raise bad_request("kv_transfer_params_json is no JSON object", "kv_transfer_params_json")
        return params
    if message.HasField("kv_transfer_params"):
        at = message.kv_transfer_params
        return {"do_remote_prefill": True, "remote_host": at.remote_host, "remote_port": at.remote_port}
    return None


def features_of(message: Proto, tokens: int) -> Features | None:
    """Returns hashes and placeholders of media from a gateway; blocks are cached under the hashes.

    Items without hashes get hashes of the whole batch. ApiError 400 for media that no server of this version
    could fetch, and for placeholders outside the prompt.
    """
    if message.HasField("media_refs"):
        raise bad_request("media_refs need a media processor, and this server has none.", "media_refs")
    batches = [message.mm_inputs] if message.HasField("mm_inputs") else []
    batches += message.extra_mm_inputs
    if not batches:
        return None
    if message.WhichOneof("input") != "tokenized":
        raise bad_request("mm_inputs need tokenized input", "mm_inputs")
    found: Features = {"mm_hashes": {}, "mm_placeholders": {}, "kwargs_data": {}}
    for batch in batches:
        tensors = (batch.pixel_values, *batch.model_specific_tensors.values())
        if any(it.WhichOneof("payload") == "remote" for it in tensors):
            raise bad_request("tensors of mm_inputs cannot be fetched from elsewhere", "mm_inputs")
        if batch.modality >= len(MODALITIES):
            raise bad_request(f"mm_inputs.modality {batch.modality} is unknown", "mm_inputs")
        modality, places, names = MODALITIES[batch.modality], batch.mm_placeholders, list(batch.mm_hashes)
        if not names:
            whole = hashlib.sha256(batch.SerializeToString()).hexdigest()
            names = [f"{whole}-{number}" for number in range(len(places))]
        if len(names) != len(places):
            raise bad_request(
                f"mm_inputs has {len(names)} hashes and {len(places)} placeholders", "mm_inputs"
            )
        if any(not place.length or place.offset + place.length > tokens for place in places):
            raise bad_request("a placeholder of mm_inputs is not within the prompt", "mm_inputs")
        found["mm_placeholders"].setdefault(modality, []).extend(
            {"offset": place.offset, "length": place.length} for place in places
        )
        found["mm_hashes"].setdefault(modality, []).extend(names)
    return found
