"""Generate: streams tokens for a prompt of tokens or a text, with messages damaged by faults."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any, cast

import msgspec

from app.engine.core.outputs import EngineOutput, Started, TakeToken, Tokens
from app.engine.core.request import EngineRequest
from app.serving.api.builder import BuiltPrompt
from app.serving.api.chat.media import Features
from app.serving.api.grpc.messages import SERVICE, engine, read, varint
from app.serving.api.grpc.writer import RpcWriter
from app.serving.api.identity import ResponseMeta, address_of
from app.serving.api.pipeline import RequestPipeline, check_repeated
from app.serving.api.responder import Responder
from app.serving.api.stream import EventStream
from app.serving.api.writer import ResponseWriter
from app.serving.faults.damage import ends_after
from app.serving.faults.fault import Damage
from app.serving.faults.injector import fault_of
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError, bad_request
from app.serving.http.response import Response
from app.serving.http.rpc import PREFIX_BYTES, RpcMethod, RpcResponse, framed
from app.serving.protocol import rules
from app.serving.protocol.coercion import JsonObject
from app.serving.protocol.completions import CompletionRequest
from app.serving.protocol.options import MAX_STOP_STRINGS, StructuredOutputs
from app.serving.protocol.validation import check_prompt_length
from config.fault_rules import (
    DisconnectRule,
    MalformedChunkRule,
    MissingDoneRule,
    TruncatedJsonRule,
)

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


def completion_of(message: Any, prompt: str | list[int], max_model_len: int) -> CompletionRequest:
    """Returns a message as a completion of `prompt`. ApiError 400 for an invalid or unsupported field."""
    at = message.sampling_params
    given: dict[str, Any] = {name: getattr(at, name) for name in SAME}
    given |= {name: getattr(at, name) or 1 for name in ONE_UNLESS_SET}
    given |= {name: getattr(at, name) if at.HasField(name) else usual for name, usual in OPTIONAL.items()}
    if given["max_tokens"] is None:
        is_whole = isinstance(prompt, list) and given["truncate_prompt_tokens"] is None
        given["max_tokens"] = max_model_len - (len(prompt) if is_whole else 0)
    if given["max_tokens"] < 1:
        raise bad_request(f"max_tokens must be at least 1, got {given['max_tokens']}", "max_tokens")
    if len(at.stop) > MAX_STOP_STRINGS:
        raise bad_request(f"stop has {len(at.stop)} texts, at most {MAX_STOP_STRINGS} are possible", "stop")
    if (given["truncate_prompt_tokens"] or 0) < -1:
        raise bad_request("truncate_prompt_tokens must be at least -1", "truncate_prompt_tokens")
    if any(map(isnan, at.logit_bias.values())):
        raise bad_request("logit_bias has a value that is no number", "logit_bias")
    for name in ("logprobs", "prompt_logprobs"):
        rules.check_number(name, given[name])
        if (given[name] or 0) < -1:
            raise bad_request(f"{name} must be 0 or more, or -1", name)
    form, name = None, at.WhichOneof("constraint")  # as no thoughts precede, it holds from the first token
    if name == "choice":
        form = StructuredOutputs(choice=list(at.choice.choices))
    elif name is not None and (name != "json_object" or at.json_object):
        form = StructuredOutputs(**{"json" if name == "json_schema" else name: getattr(at, name)})
    if form is not None:
        rules.check_structural_tag(form)
    return CompletionRequest(
        prompt=prompt,  # type: ignore[arg-type]  # a list is invariant
        stop=list(at.stop),
        stop_token_ids=list(at.stop_token_ids),
        logit_bias={str(token): bias for token, bias in at.logit_bias.items()} or None,
        structured_outputs=form,
        stream=message.stream,
        request_id=message.request_id,
        kv_transfer_params=transfer_of(message),
        **given,
    )


def transfer_of(message: Any) -> JsonObject | None:
    """Reads `kv_transfer_params` from JSON or the older typed field.

    ApiError 400 for JSON that is no object.
    """
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
        tensors: Mapping[str, Any] = batch.model_specific_tensors
        if any(it.WhichOneof("payload") == "remote" for it in (batch.pixel_values, *tensors.values())):
            raise bad_request("tensors of mm_inputs cannot be fetched from elsewhere", "mm_inputs")
        if batch.modality >= len(MODALITIES):
            raise bad_request(f"mm_inputs.modality {batch.modality} is unknown", "mm_inputs")
        modality, count = MODALITIES[batch.modality], len(batch.mm_placeholders)
        names = list(batch.mm_hashes)
        if not names:
            whole = hashlib.sha256(batch.SerializeToString()).hexdigest()
            names = [f"{whole}-{number}" for number in range(count)]
        if len(names) != count:
            raise bad_request(f"mm_inputs has {len(names)} hashes and {count} placeholders", "mm_inputs")
        spans = found["mm_placeholders"].setdefault(modality, [])
        for place in batch.mm_placeholders:
            if not place.length or place.offset + place.length > tokens:
                raise bad_request("a placeholder of mm_inputs is not within the prompt", "mm_inputs")
            spans.append({"offset": place.offset, "length": place.length})
        found["mm_hashes"].setdefault(modality, []).extend(names)
    return found


NO_MESSAGE = b"\xff\xff\xff"
"""Bytes that begin no field."""
COMPLETE = b"\x12"
"""First byte of a message that ends a choice."""


class DamagedMessages(EventStream):
    """A stream of messages, counted from 1, with `damage`: the call may end, or break, early."""

    __slots__ = ("_damage", "_number", "was_damaged")

    def __init__(self, writer: RpcWriter, choices: int, damage: Damage) -> None:
        super().__init__(writer, choices)
        self._damage, self._number, self.was_damaged = damage, 0, False

    @property
    def is_cut_off(self) -> bool:
        return self.was_damaged and not isinstance(self._damage, MalformedChunkRule)

    def emit(self, output: EngineOutput) -> TakeToken | None:
        """Queues an output: all messages come from `next_slice`."""
        transport, self.transport = self.transport, None
        super().emit(output)
        self.transport = transport
        if transport is not None:
            transport.lag()
        return None

    def next_slice(self) -> tuple[bytes, bool, bool]:
        data, more, last = super().next_slice()
        kept, at, is_over = b"", 0, ends_after(self._damage, 0)
        while at < len(data) and not is_over:
            begin = at + PREFIX_BYTES
            at = begin + int.from_bytes(data[at + 1 : begin], "big")
            self._number += 1
            kept += self._altered(data[begin:at])
            is_over = ends_after(self._damage, self._number)
        if not is_over:
            return kept, more, last
        self.was_damaged, self.unfinished = True, 0
        if self.handle is not None:
            self.handle.abort()
        if isinstance(self._damage, DisconnectRule) and self.transport is not None:
            self.transport.write(kept)
            self.transport.break_off()
            return b"", False, False
        return kept, False, True

    def _altered(self, message: bytes) -> bytes:
        damage = self._damage
        if isinstance(damage, MalformedChunkRule) and self._number == damage.chunk:
            changed = framed(NO_MESSAGE + message)
        elif isinstance(damage, TruncatedJsonRule) and self._number == damage.chunk:
            changed = framed(message[: len(message) // 2])
        elif isinstance(damage, MissingDoneRule) and message.startswith(COMPLETE):
            changed = b""
        else:
            return framed(message)
        self.was_damaged = True
        return changed

    def close(self) -> None:
        """Closes the stream; a client that is cut off has not left."""
        super().close()
        self.gone = self.gone and not self.is_cut_off


def generate_method(pipeline: RequestPipeline) -> RpcMethod:
    at = pipeline.responder
    responder = RpcResponder(at.engine, at.load, at.headers, at.batcher, at.write_timeout_s, 0.0)

    def generate(context: RequestContext) -> RpcResponse:
        message = read(context, engine.GenerateRequest, pipeline.limits.max_model_len)
        kind = message.WhichOneof("input")
        if kind is None or kind == "tokenized" and not message.tokenized.input_ids:
            raise bad_request("a prompt is needed: tokenized, or text", "input")
        most, given = pipeline.limits.max_model_len, message.text
        if kind == "tokenized":
            tokens = message.tokenized.input_ids
            if not message.sampling_params.HasField("truncate_prompt_tokens"):
                check_prompt_length(len(tokens), most)
            given = list(tokens[:most])  # the beginning, never more than the context
        request = completion_of(message, given, most)
        accepted = pipeline.admit(request, context)
        if message.HasField("data_parallel_rank") and message.data_parallel_rank != pipeline.rank:
            text = f"data_parallel_rank is {message.data_parallel_rank}, but this is rank {pipeline.rank}."
            raise bad_request(text, "data_parallel_rank")
        if isinstance(given, str):
            features_of(message, 0)
            pipeline.check_text(given)
            ids = pipeline.fit(request, pipeline.tokenizer.encode(given, True))
            prompt = BuiltPrompt(ids, given, (("user", given),) if pipeline.keeps_turns else ())
        else:
            ids = pipeline.fit(request, given)
            prompt = BuiltPrompt(
                ids, pipeline.tokenizer.decode(ids, False), (), features_of(message, len(ids))
            )
        check_repeated("prompt_logprobs", 0, len(ids) * accepted.entries_per_prompt_token)
        request_id = message.request_id or pipeline.identity.fresh_id()
        meta = ResponseMeta(request_id, pipeline.identity.now_s(), accepted.model, "")
        transfer = address_of(request, pipeline.identity, meta, len(ids))
        writer = RpcWriter(accepted.n, request, ids, transfer)
        response = pipeline.submit(accepted, meta, [prompt], writer, context, responder=responder)
        return cast(RpcResponse, response)

    return RpcMethod(f"/{SERVICE}/Generate", generate)


class RpcResponder(Responder):
    """Streams messages, with errors in the status at the end."""

    __slots__ = ()

    def respond(
        self,
        requests: Sequence[EngineRequest],
        writer: ResponseWriter,
        stream: bool,
        context: RequestContext,
    ) -> Response:
        """Returns the response, always a stream: a whole answer is one message per choice."""
        assert isinstance(writer, RpcWriter)
        fault = fault_of(context)
        body: EventStream
        if fault is not None and fault.damage is not None:
            body = DamagedMessages(writer, len(requests), fault.damage)
        else:
            body = MessageStream(writer, len(requests), None, None, 1 + (requests[0].logprobs or 0))
        body.handle = self.engine.submit(requests, body.emit)
        response = RpcResponse(body, self.headers, writer.outcome)
        if fault is not None:
            response.headers.update(fault.headers)
        self.load.begin()
        response.on_close(self.load.end)
        return response

    def broken(self, error: ApiError, writer: ResponseWriter) -> Response:
        """Raises the error, which becomes the status."""
        raise error


class MessageStream(EventStream):
    """A stream of messages; those of one choice's plain tokens differ only in the token."""

    __slots__ = ()

    def emit(self, output: EngineOutput) -> TakeToken | None:
        super().emit(output)
        writer, index = self.writer, output.index
        if type(output) is not Started or not isinstance(writer, RpcWriter):
            return None
        if (plain := writer.plain_heads(index)) is None:
            return None
        heads, tail, choice = plain

        def take(text: str, token_id: int, at_s: float) -> None:
            transport = self.transport
            if transport is None or transport.lags or not self.unfinished:
                self.emit(Tokens(index, [text], [token_id], at_s))
                return
            number = varint(token_id)
            message = b"%b%b%b" % (heads[len(number)], number, tail)
            choice.tokens += 1
            self.bytes_sent += len(message)
            transport.send_soon(message)

        return take
