"""Generate: the call as a text completion, which the pipeline submits."""

import hashlib
from math import isnan
from typing import cast

from app.core.api.answer_limits import check_repeated
from app.core.api.chat.media import BuiltPrompt, Features
from app.core.api.completions import completion_prompt
from app.core.api.headers import local_engine
from app.core.api.identity import ResponseMeta
from app.core.api.pipeline import RequestPipeline
from app.core.base.nested_json import decode_nested
from app.core.protocol import rules
from app.core.protocol.coercion import JsonObject
from app.core.protocol.completions import CompletionRequest
from app.core.protocol.options import MAX_STOP_STRINGS, StructuredOutputs
from app.core.protocol.validation import check_prompt_length, fit_prompt
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import bad_request, not_implemented
from app.core.server.http.rpc import RpcResponse
from app.extensions.grpc.messages import Proto, engine
from app.extensions.grpc.writer import RpcResponder, RpcWriter
from config.untrusted import UntrustedDataError

MODALITIES = ("image", "image", "audio", "video")
"""Modalities by their numbers; a message without one means images."""
SHARED_FIELDS = [
    (field.name, field.has_presence)
    for field in engine.SamplingParams.DESCRIPTOR.fields
    if field.name in CompletionRequest.__struct_fields__ and not field.is_repeated
]
"""Single fields of `SamplingParams` that a completion has, too, and if they may be unset."""
ONE_UNLESS_SET = ("n", "top_p", "repetition_penalty")
"""Fields that are 1 where a message omits them or has 0."""
MINIMUMS = {"max_tokens": 1, "truncate_prompt_tokens": -1, "logprobs": -1, "prompt_logprobs": -1}


class Generator:
    """Handles calls of Generate."""

    def __init__(self, pipeline: RequestPipeline) -> None:
        responder = pipeline.responder
        self._pipeline = pipeline
        self._responder = RpcResponder(
            engine=responder.engine,
            load=responder.load,
            headers=responder.headers,
            keep_alive_s=0.0,
            faults=responder.faults,
        )

    def generate(self, message: Proto, context: RequestContext) -> RpcResponse:
        """Returns the reply to a prompt, whole or as a stream."""
        pipeline = self._pipeline
        if pipeline.live.current.model.task != "generate":
            raise not_implemented("This model supports only pooling, not generation.")
        request = completion_of(message, pipeline.limits.max_model_len)
        accepted = pipeline.admit(request, context)
        if message.HasField("data_parallel_rank"):
            accepted.engine = self._pinned_engine(message.data_parallel_rank)
        prompt = self._build_prompt(message, request)
        check_repeated("prompt_logprobs", 0, len(prompt.ids) * accepted.entries_per_prompt_token)
        request_id = message.request_id or pipeline.identity.fresh_id()
        meta = ResponseMeta(request_id, pipeline.identity.now_s(), accepted.model, "")
        writer = RpcWriter(accepted.n, request, prompt.ids)
        response = pipeline.submit(
            accepted, meta, [prompt], writer, context=context, responder=self._responder
        )
        return cast(RpcResponse, response)

    def _pinned_engine(self, requested_rank: int) -> int | None:
        pipeline = self._pipeline
        server = pipeline.live.current.server
        if server.data_parallel_mode != "ports":
            return local_engine(requested_rank, server)
        if requested_rank != pipeline.rank:
            raise bad_request(
                f"data_parallel_rank is {requested_rank}, but this port serves only rank "
                f"{pipeline.rank}.",
                "data_parallel_rank",
            )
        return None

    def _build_prompt(self, message: Proto, request: CompletionRequest) -> BuiltPrompt:
        pipeline = self._pipeline
        if isinstance(request.prompt, str):
            features_of(message, 0)
            return completion_prompt(pipeline, request, request.prompt)
        prompt_ids = cast("list[int]", request.prompt)
        ids = fit_prompt(
            request, prompt_ids, pipeline.limits.max_model_len, rules=pipeline.limits.rules
        )
        text = pipeline.tokenizer.decode(ids, False)
        return BuiltPrompt(ids, text, features=features_of(message, len(ids)))


def completion_of(message: Proto, max_model_len: int) -> CompletionRequest:
    """Returns a message as a completion, of at most `max_model_len` tokens with its prompt.

    Raises:
        ApiError: 400 for an invalid or unsupported field, no prompt, or too many tokens.
    """
    params = message.sampling_params
    input_kind = message.WhichOneof("input")
    input_ids = message.tokenized.input_ids
    if input_kind is None or input_kind == "tokenized" and not input_ids:
        raise bad_request("a prompt is required, either as token IDs or as text", "input")
    fields = _shared_fields(params)
    prompt_tokens = 0
    if fields["truncate_prompt_tokens"] is None:
        prompt_tokens = len(input_ids)
    check_prompt_length(prompt_tokens, max_model_len)
    if fields["max_tokens"] is None:
        fields["max_tokens"] = max_model_len - prompt_tokens
    _check_sampling_params(params, fields)
    return CompletionRequest(
        prompt=str(message.text) if input_kind == "text" else list(input_ids[:max_model_len]),
        stop=list(params.stop),
        stop_token_ids=list(params.stop_token_ids),
        logit_bias={str(token): bias for token, bias in params.logit_bias.items()} or None,
        structured_outputs=_structured_outputs_of(params),
        stream=message.stream,
        request_id=message.request_id,
        kv_transfer_params=_transfer_of(message),
        **fields,
    )


def _shared_fields(params: Proto) -> dict[str, Proto]:
    """Returns the fields of a completion that have the same names in a message."""
    fields: dict[str, Proto] = {
        "temperature": 1.0,
        "max_tokens": None,
        "truncate_prompt_tokens": None,
    }
    for name, may_be_unset in SHARED_FIELDS:
        if not may_be_unset or params.HasField(name):
            fields[name] = getattr(params, name)
    for name in ONE_UNLESS_SET:
        fields[name] = fields[name] or 1
    return fields


def _check_sampling_params(params: Proto, fields: dict[str, Proto]) -> None:
    for name, minimum in MINIMUMS.items():
        if fields.get(name) is not None and fields[name] < minimum:
            raise bad_request(f"{name} must be at least {minimum}, got {fields[name]}", name)
    if len(params.stop) > MAX_STOP_STRINGS:
        raise bad_request(
            f"stop has {len(params.stop)} strings; at most {MAX_STOP_STRINGS} are allowed", "stop"
        )
    if any(map(isnan, params.logit_bias.values())):
        raise bad_request("logit_bias contains a value that is not a number", "logit_bias")


def _structured_outputs_of(params: Proto) -> StructuredOutputs | None:
    """Returns the form of the reply. No thoughts precede: the form holds from the first token."""
    name = params.WhichOneof("constraint")
    if name is None or name == "json_object" and not params.json_object:
        return None
    value = getattr(params, name)
    if name == "choice":
        value = list(params.choice.choices)
    fields: dict[str, Proto] = {"json" if name == "json_schema" else name: value}
    structured_outputs = StructuredOutputs(**fields)
    rules.check_structured_outputs(structured_outputs, "structured_outputs")
    return structured_outputs


def _transfer_of(message: Proto) -> JsonObject | None:
    """Reads `kv_transfer_params` from JSON or the older typed field.

    Raises:
        ApiError: 400 if the JSON is not an object.
    """
    if message.HasField("kv_transfer_params_json"):
        try:
            transfer = decode_nested(message.kv_transfer_params_json)
        except UntrustedDataError:
            transfer = None
        if not isinstance(transfer, dict):
            field = "kv_transfer_params_json"
            raise bad_request(f"{field} is not a JSON object", field)
        return transfer
    if message.HasField("kv_transfer_params"):
        params = message.kv_transfer_params
        return {
            "do_remote_prefill": True,
            "remote_host": params.remote_host,
            "remote_port": params.remote_port,
        }
    return None


def features_of(message: Proto, prompt_tokens: int) -> Features | None:
    """Returns hashes and placeholders of media from a gateway; blocks are cached under the hashes.

    Raises:
        ApiError: 400 for media that no server of this version could fetch, and for placeholders
            outside the prompt.
    """
    if message.HasField("media_refs"):
        raise bad_request(
            "media_refs requires a media processor, which this server does not have.", "media_refs"
        )
    batches: list[Proto] = []
    if message.HasField("mm_inputs"):
        batches.append(message.mm_inputs)
    batches += message.extra_mm_inputs
    if batches and message.WhichOneof("input") != "tokenized":
        raise bad_request("mm_inputs requires tokenized input", "mm_inputs")
    features: Features = {"mm_hashes": {}, "mm_placeholders": {}, "kwargs_data": {}}
    for batch in batches:
        _add_media(features, batch, prompt_tokens)
    if batches:
        return features
    return None


def _add_media(features: Features, batch: Proto, prompt_tokens: int) -> None:
    """Adds a batch of media. Items without hashes get hashes of the whole batch."""
    tensors = (batch.pixel_values, *batch.model_specific_tensors.values())
    if any(tensor.WhichOneof("payload") == "remote" for tensor in tensors):
        raise bad_request("tensors in mm_inputs cannot be fetched from other servers", "mm_inputs")
    if batch.modality >= len(MODALITIES):
        raise bad_request(f"mm_inputs contains the unknown modality {batch.modality}", "mm_inputs")
    modality = MODALITIES[batch.modality]
    places = batch.mm_placeholders
    hashes = list(batch.mm_hashes)
    if not hashes:
        batch_hash = hashlib.sha256(batch.SerializeToString()).hexdigest()
        hashes = [f"{batch_hash}-{number}" for number in range(len(places))]
    if len(hashes) != len(places):
        raise bad_request(
            f"mm_inputs has {len(hashes)} hashes but {len(places)} placeholders", "mm_inputs"
        )
    if any(not place.length or place.offset + place.length > prompt_tokens for place in places):
        raise bad_request("a placeholder in mm_inputs is outside the prompt", "mm_inputs")
    spans = features["mm_placeholders"].setdefault(modality, [])
    spans += [{"offset": place.offset, "length": place.length} for place in places]
    features["mm_hashes"].setdefault(modality, []).extend(hashes)
