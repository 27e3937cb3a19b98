"""Messages of gRPC, and Generate: one for each token of a reply, and one for the end of a choice,
as in vLLM.

protoc makes the messages: their fields have no types that a checker would know.
"""

import hashlib
from collections.abc import Sequence
from math import isnan
from typing import Any, Final, TypeAlias, cast

import msgspec
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2

from app.base.clock.pause import Slices
from app.engine.core.outputs import EngineOutput, Failed, Finish, TokenLogprob, Tokens
from app.engine.core.request import EngineRequest
from app.serving.api.chat.media import BuiltPrompt, Features
from app.serving.api.completions import completion_prompt
from app.serving.api.errors import as_stream_error
from app.serving.api.identity import ResponseMeta
from app.serving.api.logprobs import ALL
from app.serving.api.pipeline import RequestPipeline, check_repeated
from app.serving.api.responder import EventStream, Responder
from app.serving.api.writer import ResponseWriter
from app.serving.faults.fault import DamagedStream, Fault
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError, bad_request, not_implemented
from app.serving.http.response import Response
from app.serving.http.route import PREFIX_BYTES, RpcOutcome, RpcResponse, framed
from app.serving.protocol import rules
from app.serving.protocol.coercion import JsonObject
from app.serving.protocol.completions import CompletionRequest
from app.serving.protocol.options import MAX_STOP_STRINGS, StructuredOutputs
from app.serving.protocol.validation import check_prompt_length, fit_prompt
from config.fault_rules import MalformedChunkRule, MissingDoneRule, TruncatedJsonRule

Proto: TypeAlias = Any
"""A message of protobuf, or a module of its messages, which ship no types."""
engine: Proto = vllm_engine_pb2
common: Proto = common_pb2
SERVICE: Final = "vllm.grpc.engine.VllmEngine"
MOST_MESSAGE_BYTES: Final = 1 << 24
"""Largest message, whatever the limit of HTTP bodies: protobuf parses it in one go."""
MOST_OTHER_BYTES: Final = 1 << 22
"""Most bytes of a message beside its tensors."""
MOST_FIELDS: Final = 1 << 14
"""Most fields of a message, nested ones included; packed numbers are one field."""
LONG: Final = 1 << 15
"""Size in bytes of a message that cannot have too many fields, and is not scanned."""
FIXED: Final = {1: 8, 5: 4}
"""Bytes of a field by its kind on the wire, where that is fixed (protobuf's encoding guide)."""
VARINT, BYTES = 0, 2


def read(context: RequestContext, kind: type[Message]) -> Proto:
    """Reads the message of type `kind` in the body.

    ApiError 400 if broken, or too large. May pause.
    """
    data = context.body or b""
    if len(data) > LONG:
        check_size(data, kind.DESCRIPTOR)
    try:
        return kind.FromString(data)
    except DecodeError:
        raise bad_request(f"The message is no {kind.DESCRIPTOR.full_name}.") from None


def check_size(data: bytes, kind: Proto) -> None:
    """Raises ApiError 400 for a message of type `kind` that is broken, or would take too long to
    parse.
    """
    fields, others, turns, nested = 0, len(data), Slices(), [(0, len(data), kind)]
    while nested and fields <= MOST_FIELDS:
        at, end, known = nested.pop()
        while at < end and fields <= MOST_FIELDS:
            tag, at = _varint(data, at)
            field, wire = known.fields_by_number.get(tag >> 3), tag & 7
            size = FIXED.get(wire, 0)
            if wire in (VARINT, BYTES):
                size, at = _varint(data, at)
                size *= wire == BYTES
            if wire not in (VARINT, BYTES, *FIXED) or at + size > end:
                raise bad_request("The message is broken.")
            if field is not None and field.type == FieldDescriptor.TYPE_MESSAGE:
                nested.append((at, at + size, field.message_type))
            elif field is not None and field.type == FieldDescriptor.TYPE_BYTES:
                others -= size
            at, fields = at + size, fields + 1
            turns.spend()
    if fields > MOST_FIELDS or others > MOST_OTHER_BYTES:
        limits = f"{MOST_FIELDS} fields, and {MOST_OTHER_BYTES} bytes beside tensors"
        raise bad_request(f"A message has at most {limits}.")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise bad_request("The message is broken.")


def framed_message(message: Message) -> bytes:
    return framed(message.SerializeToString())


MODALITIES = ("image", "image", "audio", "video")
"""Modalities by their numbers; a message without one means images."""
NAMESAKES = [
    (field.name, field.has_presence)
    for field in engine.SamplingParams.DESCRIPTOR.fields
    if field.name in CompletionRequest.__struct_fields__ and not field.is_repeated
]
"""Single fields of `SamplingParams` that have the same names in a completion; those that may be
unset.
"""
ONE_UNLESS_SET = ("n", "top_p", "repetition_penalty")
"""Fields that are 1 where a message omits them or has 0."""
LEAST = {"max_tokens": 1, "truncate_prompt_tokens": -1, "logprobs": -1, "prompt_logprobs": -1}
NO_MESSAGE = b"\xff\xff\xff"
"""Bytes that begin no field."""
COMPLETE = b"\x12"
"""First byte of a message that ends a choice."""


class Generator:
    def __init__(self, pipeline: RequestPipeline) -> None:
        at = pipeline.responder
        self._pipeline, self._responder = (
            pipeline,
            RpcResponder(at.engine, at.load, at.headers, 0.0),
        )

    def generate(self, message: Proto, context: RequestContext) -> RpcResponse:
        pipeline = self._pipeline
        if pipeline.settings.model.task != "generate":
            raise not_implemented("This model pools; it does not generate.")
        request = completion_of(message, pipeline.limits.max_model_len)
        accepted = pipeline.admit(request, context)
        if message.HasField("data_parallel_rank") and message.data_parallel_rank != pipeline.rank:
            text = f"data_parallel_rank is {message.data_parallel_rank}, but this is rank {pipeline.rank}."
            raise bad_request(text, "data_parallel_rank")
        built = self._built_prompt(message, request)
        check_repeated("prompt_logprobs", 0, len(built.ids) * accepted.entries_per_prompt_token)
        request_id = message.request_id or pipeline.identity.fresh_id()
        meta = ResponseMeta(request_id, pipeline.identity.now_s(), accepted.model, "")
        writer = RpcWriter(accepted.n, request, built.ids)
        response = pipeline.submit(
            accepted, meta, [built], writer, context, responder=self._responder
        )
        return cast(RpcResponse, response)

    def _built_prompt(self, message: Proto, request: CompletionRequest) -> BuiltPrompt:
        given, pipeline = request.prompt, self._pipeline
        if isinstance(given, str):
            features_of(message, 0)
            return completion_prompt(pipeline, request, given)
        ids = fit_prompt(request, cast("list[int]", given), pipeline.limits.max_model_len)
        return BuiltPrompt(
            ids, pipeline.tokenizer.decode(ids, False), (), features_of(message, len(ids))
        )


def completion_of(message: Proto, most: int) -> CompletionRequest:
    """Returns a message as a completion, of `most` tokens with its prompt.

    ApiError 400 for an invalid or unsupported field, no prompt, or too many tokens.
    """
    at, kind = message.sampling_params, message.WhichOneof("input")
    if kind is None or kind == "tokenized" and not message.tokenized.input_ids:
        raise bad_request("a prompt is needed: tokenized, or text", "input")
    given: dict[str, Proto] = {
        "temperature": 1.0,
        "max_tokens": None,
        "truncate_prompt_tokens": None,
    }
    given |= {
        name: getattr(at, name) for name, may_lack in NAMESAKES if not may_lack or at.HasField(name)
    }
    given |= {name: given[name] or 1 for name in ONE_UNLESS_SET}
    size = len(message.tokenized.input_ids) if given["truncate_prompt_tokens"] is None else 0
    check_prompt_length(size, most)
    if given["max_tokens"] is None:
        given["max_tokens"] = most - size
    for name, least in LEAST.items():
        if given.get(name) is not None and given[name] < least:
            raise bad_request(f"{name} must be at least {least}, got {given[name]}", name)
    if len(at.stop) > MAX_STOP_STRINGS:
        raise bad_request(
            f"stop has {len(at.stop)} texts, at most {MAX_STOP_STRINGS} are possible", "stop"
        )
    if any(map(isnan, at.logit_bias.values())):
        raise bad_request("logit_bias has a value that is no number", "logit_bias")
    return CompletionRequest(
        prompt=str(message.text) if kind == "text" else list(message.tokenized.input_ids[:most]),
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
    """Reads `kv_transfer_params` from JSON or the older typed field.

    ApiError 400 if JSON is no object.
    """
    if message.HasField("kv_transfer_params_json"):
        try:
            return msgspec.json.decode(message.kv_transfer_params_json, type=JsonObject)
        except (msgspec.DecodeError, RecursionError):
            field = "kv_transfer_params_json"
            raise bad_request(f"{field} is no JSON object", field) from None
    if message.HasField("kv_transfer_params"):
        at = message.kv_transfer_params
        return {
            "do_remote_prefill": True,
            "remote_host": at.remote_host,
            "remote_port": at.remote_port,
        }
    return None


def features_of(message: Proto, tokens: int) -> Features | None:
    """Returns hashes and placeholders of media from a gateway; blocks are cached under the hashes.

    Items without hashes get hashes of the whole batch. ApiError 400 for media that no server of
    this version could fetch, and for placeholders outside the prompt.
    """
    if message.HasField("media_refs"):
        raise bad_request(
            "media_refs need a media processor, and this server has none.", "media_refs"
        )
    batches = [message.mm_inputs] if message.HasField("mm_inputs") else []
    batches += message.extra_mm_inputs
    if batches and message.WhichOneof("input") != "tokenized":
        raise bad_request("mm_inputs need tokenized input", "mm_inputs")
    found: Features = {"mm_hashes": {}, "mm_placeholders": {}, "kwargs_data": {}}
    for batch in batches:
        tensors = (batch.pixel_values, *batch.model_specific_tensors.values())
        if any(it.WhichOneof("payload") == "remote" for it in tensors):
            raise bad_request("tensors of mm_inputs cannot be fetched from elsewhere", "mm_inputs")
        if batch.modality >= len(MODALITIES):
            raise bad_request(f"mm_inputs.modality {batch.modality} is unknown", "mm_inputs")
        modality, places, names = (
            MODALITIES[batch.modality],
            batch.mm_placeholders,
            list(batch.mm_hashes),
        )
        if not names:
            whole = hashlib.sha256(batch.SerializeToString()).hexdigest()
            names = [f"{whole}-{number}" for number in range(len(places))]
        if len(names) != len(places):
            text = f"mm_inputs has {len(names)} hashes and {len(places)} placeholders"
            raise bad_request(text, "mm_inputs")
        if any(not place.length or place.offset + place.length > tokens for place in places):
            raise bad_request("a placeholder of mm_inputs is not within the prompt", "mm_inputs")
        spans = found["mm_placeholders"].setdefault(modality, [])
        spans += [{"offset": place.offset, "length": place.length} for place in places]
        found["mm_hashes"].setdefault(modality, []).extend(names)
    return found if batches else None


class RpcWriter(ResponseWriter):
    """Writes the answer to one call. A choice that breaks makes `outcome` an error."""

    def __init__(self, choices: int, request: CompletionRequest, prompt_ids: Sequence[int]) -> None:
        super().__init__(choices)
        self.outcome = RpcOutcome()
        self._prompt_ids = prompt_ids
        self._stream, self._logprobs = bool(request.stream), request.logprobs
        self._prompt_top = request.prompt_logprobs or 0
        self._input: Proto = None
        """Log probabilities of the prompt, once rendered."""
        self._begun: set[int] = set()
        """Choices that have sent the prompt's log probabilities."""
        self._plain: dict[int, Proto] = {}
        """Message of each choice's plain tokens, which differ only in the id."""
        self._kept: list[Proto] = (
            [] if self._stream else [engine.OutputLogProbs() for _ in self.choices]
        )

    def chunk(self, output: EngineOutput) -> bytes:
        """Returns the messages of `output` with their prefixes."""
        if type(output) is Tokens:
            return self._streamed(output) if self._stream else self._whole(output)
        if type(output) is Failed:
            self.has_failed = True
            self.outcome.fail(as_stream_error(output.error))
        else:
            self.collect(output)
        return b""

    def closing(self) -> bytes:
        """Returns nothing: the transport sends the status."""
        return b""

    def _streamed(self, output: Tokens) -> bytes:
        index, ids, entries = output.index, output.ids, output.logprobs or ()
        self.choices[index].tokens += len(ids)
        messages = [self._chunk(index, one, entries[at : at + 1]) for at, one in enumerate(ids)]
        if output.finish is not None:
            last = self._of_reply(engine.OutputLogProbs(), entries[-1:]) if entries else None
            messages.append(self._complete(index, output.finish, ids[-1:], last))
        return b"".join(messages)

    def _chunk(self, index: int, token_id: int, entries: Sequence[TokenLogprob]) -> bytes:
        said = None if entries else self._plain.get(index)
        if said is None:
            chunk = engine.GenerateStreamChunk(
                token_ids=[token_id],
                prompt_tokens=self.usage.told(len(self._prompt_ids), 0)[0],
                completion_tokens=1,
                cached_tokens=self.reported_cached_tokens,
                output_logprobs=self._of_reply(engine.OutputLogProbs(), entries)
                if entries
                else None,
                input_logprobs=None if index in self._begun else self._of_prompt(),
                index=index,
            )
            said = engine.GenerateResponse(chunk=chunk)
            if not entries and not chunk.HasField("input_logprobs"):
                self._plain[index] = said
            self._begun.add(index)
        said.chunk.token_ids[0] = token_id
        return framed_message(said)

    def _whole(self, output: Tokens) -> bytes:
        choice, kept = self.choices[output.index], self._kept[output.index]
        choice.count(output)
        self._of_reply(kept, output.logprobs or ())
        if output.finish is None:
            return b""
        logprobs = kept if kept.token_ids else None
        return self._complete(output.index, output.finish, choice.ids, logprobs)

    def _complete(self, index: int, finish: Finish, ids: Sequence[int], logprobs: Proto) -> bytes:
        """Returns the end of a choice. In a stream it repeats only the last token, as in vLLM."""
        prompt_tokens, tokens = self.usage.told(len(self._prompt_ids), len(ids))
        said = engine.GenerateComplete(
            output_ids=ids,
            finish_reason=finish.reason,
            prompt_tokens=prompt_tokens,
            completion_tokens=tokens,
            cached_tokens=self.reported_cached_tokens,
            output_logprobs=logprobs,
            input_logprobs=self._of_prompt(),
            index=index,
        )
        if isinstance(finish.stop_reason, int):
            said.matched_token_id = finish.stop_reason
        elif finish.stop_reason is not None:
            said.matched_stop_str = finish.stop_reason
        if (transfer := self.transfer) is not None:
            said.kv_transfer_params_json = msgspec.json.encode(transfer).decode()
            said.kv_transfer_params.remote_host = transfer.remote_host
            said.kv_transfer_params.remote_port = transfer.remote_port
        return framed_message(engine.GenerateResponse(complete=said))

    def _of_reply(self, to: Proto, entries: Sequence[TokenLogprob]) -> Proto:
        for entry in entries:
            to.token_logprobs.append(entry.logprob)
            to.token_ids.append(entry.token_id)
            if self._logprobs:
                _add_top(to, entry, self._logprobs)
        return to

    def _of_prompt(self) -> Proto:
        if self._input is None and self.prompt_logprobs is not None:
            self._input = engine.InputLogProbs(token_ids=self._prompt_ids)
            for entry in self.prompt_logprobs:
                probability = self._input.token_logprobs.add()
                if entry is not None:
                    probability.value = entry.logprob
                if self._prompt_top:
                    _add_top(self._input, entry, self._prompt_top)
        return self._input


def _add_top(to: Proto, entry: TokenLogprob | None, top: int) -> None:
    alternatives = to.top_logprobs.add()
    if entry is not None:
        shown = entry.top if top == ALL else entry.top[:top]
        alternatives.token_ids.extend([token_id for token_id, _, _ in shown])
        alternatives.values.extend([logprob for _, _, logprob in shown])


class DamagedMessages(DamagedStream):
    def _chunks(self, data: bytes) -> Sequence[bytes]:
        chunks = []
        while data:
            end = PREFIX_BYTES + int.from_bytes(data[1:PREFIX_BYTES], "big")
            chunks.append(data[PREFIX_BYTES:end])
            data = data[end:]
        return chunks

    def _altered(self, number: int, chunk: bytes) -> bytes:
        """Returns a message, perhaps damaged, with its prefix; nothing for an end that is left out."""
        damage = self._damage
        if isinstance(damage, MissingDoneRule) and chunk.startswith(COMPLETE):
            self.was_damaged = True
            return b""
        if isinstance(damage, MalformedChunkRule | TruncatedJsonRule) and number == damage.chunk:
            self.was_damaged = True
            is_cut = isinstance(damage, TruncatedJsonRule)
            chunk = chunk[: len(chunk) // 2] if is_cut else NO_MESSAGE + chunk
        return framed(chunk)


class RpcResponder(Responder):
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
        fault, entries = context.kept(Fault), 1 + (requests[0].logprobs or 0)
        body = EventStream(writer, len(requests), entries_per_token=entries)
        body.handle = self.engine.submit(requests, body.emit)
        response = RpcResponse(body, self.headers, writer.outcome)
        if fault is not None:
            response.headers.update(fault.headers)
            if fault.damage is not None:
                response.body = DamagedMessages(body, fault.damage, None)
        self.load.begin()
        response.on_close(self.load.end)
        return response

    def broken(self, error: ApiError, writer: ResponseWriter) -> Response:
        """Raises the error, which becomes the status."""
        raise error
