"""A `GenerateRequest` as the completion that it asks for: every field of it counts, or is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

import msgspec

from app.api.chat.media import Features
from app.http.errors import bad_request
from app.protocol.coercion import JsonObject
from app.protocol.completions import CompletionRequest
from app.protocol.options import MAX_STOP_STRINGS, StructuredOutputs
from app.protocol.validation import rules

MODALITIES = ("image", "image", "audio", "video")
"""By their numbers; who names none means images."""
LONGEST_SALT = 1024


def asked_of(message: Any, prompt: str | list[int], max_model_len: int) -> CompletionRequest:
    """The same, of `prompt`. ApiError 400 for a field that makes no sense, or that nothing here can do."""
    at = message.sampling_params
    room = max_model_len
    if isinstance(prompt, list) and not at.HasField("truncate_prompt_tokens"):
        room -= len(prompt)
    most = at.max_tokens if at.HasField("max_tokens") else room
    if most < 1:
        raise bad_request(f"max_tokens must be at least 1, got {most}", "max_tokens")
    if len(at.stop) > MAX_STOP_STRINGS:
        raise bad_request(f"stop has {len(at.stop)} texts, at most {MAX_STOP_STRINGS} are possible", "stop")
    asked = CompletionRequest(
        prompt=prompt,  # type: ignore[arg-type]  # a list is invariant
        max_tokens=most,
        n=at.n or 1,
        temperature=at.temperature if at.HasField("temperature") else 1.0,
        top_p=at.top_p or 1.0,
        top_k=at.top_k,
        min_p=at.min_p,
        frequency_penalty=at.frequency_penalty,
        presence_penalty=at.presence_penalty,
        repetition_penalty=at.repetition_penalty or 1.0,
        min_tokens=at.min_tokens,
        stop=list(at.stop),
        stop_token_ids=list(at.stop_token_ids),
        skip_special_tokens=at.skip_special_tokens,
        spaces_between_special_tokens=at.spaces_between_special_tokens,
        ignore_eos=at.ignore_eos,
        logprobs=at.logprobs if at.HasField("logprobs") else None,
        prompt_logprobs=at.prompt_logprobs if at.HasField("prompt_logprobs") else None,
        seed=at.seed if at.HasField("seed") else None,
        include_stop_str_in_output=at.include_stop_str_in_output,
        logit_bias={str(token): bias for token, bias in at.logit_bias.items()} or None,
        truncate_prompt_tokens=_truncation(at),
        structured_outputs=_constraint(at),
        stream=message.stream,
        request_id=message.request_id,
        kv_transfer_params=transfer_of(message),
    )
    if any(map(isnan, at.logit_bias.values())):
        raise bad_request("logit_bias has a value that is no number", "logit_bias")
    for name in ("logprobs", "prompt_logprobs"):
        rules.check_number(name, getattr(asked, name))
        if (getattr(asked, name) or 0) < -1:
            raise bad_request(f"{name} must be 0 or more, or -1", name)
    if asked.structured_outputs is not None:
        rules.check_structural_tag(asked.structured_outputs)
    return asked


def _truncation(at: Any) -> int | None:
    if not at.HasField("truncate_prompt_tokens"):
        return None
    if at.truncate_prompt_tokens < -1:
        raise bad_request("truncate_prompt_tokens must be at least -1", "truncate_prompt_tokens")
    return int(at.truncate_prompt_tokens)


def _constraint(at: Any) -> StructuredOutputs | None:
    """The form of the reply. `grammar_from_first_token` is always so: a completion has no thoughts before."""
    name = at.WhichOneof("constraint")
    if name is None or name == "json_object" and not at.json_object:
        return None
    if name == "choice":
        return StructuredOutputs(choice=list(at.choice.choices))
    if name == "json_schema":
        return StructuredOutputs(json=at.json_schema)
    return StructuredOutputs(**{name: getattr(at, name)})


def transfer_of(message: Any) -> JsonObject | None:
    """Where the prompt's cache is, or that it is to be kept for another: JSON, or the older typed field."""
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


def features_of(message: Any, tokens: int) -> Features | None:
    """Images and the like that a gateway has prepared: the hashes by which cached blocks know them.

    ApiError 400 for media that nobody could fetch here, or that are not where they are said to be.
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
        _check_tensors(batch)
        if batch.modality >= len(MODALITIES):
            raise bad_request(f"mm_inputs.modality {batch.modality} is unknown", "mm_inputs")
        modality = MODALITIES[batch.modality]
        names = _names(batch)
        if len(names) != len(batch.mm_placeholders):
            count = len(batch.mm_placeholders)
            raise bad_request(f"mm_inputs has {len(names)} hashes and {count} placeholders", "mm_inputs")
        spans = found["mm_placeholders"].setdefault(modality, [])
        for place in batch.mm_placeholders:
            if not place.length or place.offset + place.length > tokens:
                raise bad_request("a placeholder of mm_inputs is not within the prompt", "mm_inputs")
            spans.append({"offset": place.offset, "length": place.length})
        found["mm_hashes"].setdefault(modality, []).extend(names)
    return found


def _names(batch: Any) -> Sequence[str]:
    """A hash of each item: a gateway that gives none gets those of what it sent."""
    if batch.mm_hashes:
        return list(batch.mm_hashes)
    whole = hashlib.sha256(batch.SerializeToString()).hexdigest()
    return [f"{whole}-{number}" for number in range(len(batch.mm_placeholders))]


def _check_tensors(batch: Any) -> None:
    """Tensors are read by nobody here; those that no server of this version could fetch are refused."""
    tensors: Mapping[str, Any] = batch.model_specific_tensors
    for tensor in (batch.pixel_values, *tensors.values()):
        if tensor.WhichOneof("payload") == "remote":
            raise bad_request("tensors of mm_inputs cannot be fetched from elsewhere", "mm_inputs")
