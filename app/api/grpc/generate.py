"""Generate: a prompt of tokens, or a text, for a stream of tokens. The way is that of HTTP, door by door."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from app.api.builder import Prompt
from app.api.frontend import Frontend
from app.api.grpc.damage import DamagedMessages
from app.api.grpc.messages import SERVICE, engine, read, varint
from app.api.grpc.request import asked_of, features_of
from app.api.grpc.writer import GenerateWriter
from app.api.identity import ResponseMeta, address_of
from app.api.responder import Responder
from app.api.stream import EventStream
from app.api.writer import ChoiceState, ResponseWriter
from app.engine.client import TakeToken
from app.engine.outputs import EngineOutput, Started, Tokens
from app.engine.request import EngineRequest
from app.faults.injector import fault_of
from app.http.context import RequestContext
from app.http.errors import ApiError, bad_request
from app.http.response import Response
from app.http.rpc import RpcMethod, RpcResponse
from app.protocol.validation.generation import check_prompt_length


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
        accepted = frontend.accept(asked, context)
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
        response = frontend.generate(accepted, meta, [prompt], writer, context, responder=responder)
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
