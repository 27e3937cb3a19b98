"""Generate: a prompt of tokens, or a text, for a stream of tokens; messages damaged on purpose."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from typing import Any, cast

import msgspec

from app.api.builder import Prompt
from app.api.chat.media import Features
from app.api.frontend import Frontend
from app.api.grpc.messages import SERVICE, engine, read, varint
from app.api.grpc.writer import GenerateWriter
from app.api.identity import ResponseMeta, address_of
from app.api.responder import Responder
from app.api.stream import EventStream
from app.api.writer import ChoiceState, ResponseWriter
from app.engine.client import TakeToken
from app.engine.outputs import EngineOutput, Started, Tokens
from app.engine.request import EngineRequest
from app.faults.damage import ends_after
from app.faults.fault import Damage
from app.faults.injector import fault_of
from app.http.context import RequestContext
from app.http.errors import ApiError, bad_request
from app.http.response import Response
from app.http.rpc import PREFIX_BYTES, RpcMethod, RpcResponse, framed
from app.protocol import rules
from app.protocol.coercion import JsonObject
from app.protocol.completions import CompletionRequest
from app.protocol.options import MAX_STOP_STRINGS, StructuredOutputs
from app.protocol.validation import check_prompt_length
from config.fault_rules import (
    DisconnectRule,
    MalformedChunkRule,
    MissingDoneRule,
    TruncatedJsonRule,
)

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


NO_MESSAGE = b"\xff\xff\xff"
"""No field begins so."""
COMPLETE = b"\x12"
"""How a message begins that tells the end of a choice."""


class MessageDamage:
    """Alters the messages of one call, counted from 1. `is_over` says that no more may come."""

    def __init__(self, damage: Damage) -> None:
        self._damage = damage
        self._number = 0
        self.was_damaged = self.is_over = ends_after(damage, 0)

    def applied(self, data: bytes) -> bytes:
        """What leaves instead of these messages."""
        kept = []
        for message in _messages(data):
            if self.is_over:
                break
            self._number += 1
            kept.append(self._altered(message))
            if ends_after(self._damage, self._number):
                self.was_damaged = self.is_over = True
        return b"".join(kept)

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


def _messages(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        begin = at + PREFIX_BYTES
        at = begin + int.from_bytes(data[at + 1 : begin], "big")
        yield data[begin:at]


class DamagedMessages(EventStream):
    """A stream of messages with `damage`: `writer` is told of it, and the call ends, or breaks, early."""

    __slots__ = ("_damage", "_rule")

    def __init__(self, writer: GenerateWriter, choices: int, damage: Damage) -> None:
        super().__init__(writer, choices)
        self._rule, self._damage = damage, MessageDamage(damage)
        writer.damage = self._damage

    @property
    def was_damaged(self) -> bool:  # type: ignore[override]
        """It has come to that."""
        return self._damage.was_damaged

    @property
    def is_cut_off(self) -> bool:
        """The end is missing."""
        return self.was_damaged and not isinstance(self._rule, MalformedChunkRule)

    def emit(self, output: EngineOutput) -> TakeToken | None:
        """Take an output; none by itself."""
        super().emit(output)
        transport = self.transport
        if self._damage.is_over and self.unfinished and transport is not None and not transport.lags:
            self.unfinished = 0
            if self.handle is not None:
                self.handle.abort()
            self._end()
        return None

    def next_slice(self) -> tuple[bytes, bool, bool]:
        """See `EventStream`."""
        data, more, last = super().next_slice()
        if not self._damage.is_over:
            return data, more, last
        self.unfinished = 0
        if isinstance(self._rule, DisconnectRule) and self.transport is not None:
            self.transport.write(data)
            self.transport.break_off()
            return b"", False, False
        return data, False, True

    def _end(self) -> None:
        if self.transport is None:
            return
        if isinstance(self._rule, DisconnectRule):
            self.transport.break_off()
        else:
            self.transport.write(b"", True)

    def close(self) -> None:
        """Whoever is cut off has not left."""
        super().close()
        self.gone = self.gone and not self.is_cut_off


def generate_method(frontend: Frontend) -> RpcMethod:
    """The method, for a model that generates."""
    at = frontend.responder
    responder = RpcResponder(at.engine, at.load, at.headers, at.batcher, at.write_timeout_s, 0.0)

    def generate(context: RequestContext) -> RpcResponse:
        message = read(context, engine.GenerateRequest, frontend.limits.max_model_len)
        kind = message.WhichOneof("input")
        if kind is None or kind == "tokenized" and not message.tokenized.input_ids:
            raise bad_request("a prompt is needed: tokenized, or text", "input")
        given: str | list[int] = message.text if kind == "text" else _ids(message, frontend)
        asked = asked_of(message, given, frontend.limits.max_model_len)
        accepted = frontend.admit(asked, context)
        if message.HasField("data_parallel_rank") and message.data_parallel_rank != frontend.rank:
            text = f"data_parallel_rank is {message.data_parallel_rank}, but this is rank {frontend.rank}."
            raise bad_request(text, "data_parallel_rank")
        if isinstance(given, str):
            features_of(message, 0)
            frontend.check_text(given)
            ids = frontend.fit(asked, frontend.tokenizer.encode(given, True))
            prompt = Prompt(ids, given, (("user", given),) if frontend.keeps_turns else ())
        else:
            ids = frontend.fit(asked, given)
            prompt = Prompt(ids, frontend.tokenizer.decode(ids, False), (), features_of(message, len(ids)))
        request_id = message.request_id or frontend.identity.fresh_id()
        meta = ResponseMeta(request_id, frontend.identity.now_s(), accepted.model, "")
        writer = GenerateWriter(
            accepted.n,
            len(ids),
            message.stream,
            asked.logprobs,
            asked.prompt_logprobs,
            ids,
            address_of(asked, frontend.identity, meta, len(ids)),
        )
        response = frontend.submit(accepted, meta, [prompt], writer, context, responder=responder)
        return cast(RpcResponse, response)

    return RpcMethod(f"/{SERVICE}/Generate", generate)


def _ids(message: Any, frontend: Frontend) -> list[int]:
    """The prompt's tokens. ApiError 400, before any work on them, where they are too many."""
    ids, most = message.tokenized.input_ids, frontend.limits.max_model_len
    if message.sampling_params.HasField("truncate_prompt_tokens"):
        return list(ids[:most])  # what is kept is never more, and is the begin
    check_prompt_length(len(ids), most)
    return list(ids)


class RpcResponder(Responder):
    """Streams messages, with whatever is wrong in the status at the end."""

    __slots__ = ()

    def respond(
        self,
        requests: Sequence[EngineRequest],
        writer: ResponseWriter,
        stream: bool,
        context: RequestContext,
    ) -> Response:
        """The response, which is a stream where the answer is whole, too: that is one message a choice."""
        assert isinstance(writer, GenerateWriter)
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
        """The status tells it."""
        raise error


class MessageStream(EventStream):
    """An `EventStream` of messages."""

    __slots__ = ()

    def emit(self, output: EngineOutput) -> TakeToken | None:
        super().emit(output)
        writer = self.writer
        if type(output) is Started and isinstance(writer, GenerateWriter):
            heads = writer.plain_heads(output.index)
            return None if heads is None else PlainMessages(self, output.index, *heads).take
        return None


class PlainMessages:
    """Takes the plain tokens of one choice of a stream: messages that are the same but for the token."""

    __slots__ = ("_choice", "_heads", "_index", "_stream", "_tail")

    def __init__(
        self, stream: MessageStream, index: int, heads: Sequence[bytes], tail: bytes, choice: ChoiceState
    ) -> None:
        self._stream, self._index, self._heads, self._tail, self._choice = stream, index, heads, tail, choice

    def take(self, text: str, token_id: int, at_s: float) -> None:
        """See `TakeToken`."""
        stream = self._stream
        transport = stream.transport
        if transport is None or transport.lags or not stream.unfinished:
            stream.emit(Tokens(self._index, [text], [token_id], at_s))
            return
        number = varint(token_id)
        message = b"%b%b%b" % (self._heads[len(number)], number, self._tail)
        self._choice.tokens += 1
        stream.bytes_sent += len(message)
        transport.send_soon(message)
