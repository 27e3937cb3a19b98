"""Answers of Generate as vLLM writes them: a message for each token, and one for the end of a choice.

The message of a plain token is assembled by hand: protobuf takes several times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import gevent
import msgspec

from app.engine.core.outputs import EngineOutput, Failed, Finish, Started, TakeToken, TokenLogprob, Tokens
from app.engine.core.request import EngineRequest
from app.serving.api.errors import as_stream_error
from app.serving.api.grpc.messages import Proto, engine, varint
from app.serving.api.logprobs import ALL
from app.serving.api.responder import EventStream, Responder
from app.serving.api.writer import ResponseWriter
from app.serving.faults.fault import Damage, DamagedStream, Fault
from app.serving.http.connection import BrokenOffError, StreamTransport
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError
from app.serving.http.response import Response
from app.serving.http.rpc import PREFIX_BYTES, RpcOutcome, RpcResponse, framed
from app.serving.protocol.common import KVTransferParams
from app.serving.protocol.completions import CompletionRequest
from config.fault_rules import MalformedChunkRule, MissingDoneRule, TruncatedJsonRule

PLAIN_MESSAGE = b"\0\0\0\0%c\x0a%c\x0a%c%b%b"
"""Prefix of 5 bytes, and a response with a chunk: all sizes are below 128."""


class RpcWriter(ResponseWriter):
    """Writes the answer to one call. A choice that breaks makes `outcome` an error."""

    def __init__(
        self,
        choices: int,
        request: CompletionRequest,
        prompt_ids: Sequence[int],
        transfer: KVTransferParams | None,
    ) -> None:
        super().__init__(choices)
        self.outcome = RpcOutcome()
        self._prompt_ids, self._transfer = prompt_ids, transfer
        self._stream, self._logprobs = bool(request.stream), request.logprobs
        self._prompt_top = request.prompt_logprobs or 0
        self._input: Proto = None
        """Log probabilities of the prompt, once rendered."""
        self._begun: set[int] = set()
        """Choices that have sent the prompt's log probabilities."""
        self._kept: list[Proto] = [] if self._stream else [engine.OutputLogProbs() for _ in self.choices]

    def chunk(self, output: EngineOutput) -> bytes:
        """Returns the messages of `output` with their prefixes."""
        if type(output) is Tokens:
            return self._streamed(output) if self._stream else self._whole(output)
        if type(output) is Failed:
            self.has_failed = True
            self.outcome.fail(as_stream_error(output.error))
        else:
            self.take(output)
        return b""

    def closing(self) -> bytes:
        """Returns nothing: the transport sends the status."""
        return b""

    def whole(self) -> msgspec.Struct:
        """Fails: an answer consists of messages only."""
        raise NotImplementedError

    def plain_tail(self, index: int) -> bytes | None:
        """Returns the fields behind the id in the message of a plain token; None where it has more."""
        if not self._stream or self._logprobs is not None or self.prompt_logprobs is not None:
            return None
        tail = b"\x10" + varint(self._told_prompt) + b"\x18\x01"
        if self.told_cached:
            tail += b"\x20" + varint(self.told_cached)
        return tail + b"\x38" + varint(index) if index else tail

    @property
    def _told_prompt(self) -> int:
        return self.usage.told(len(self._prompt_ids), 0)[0]

    def _streamed(self, output: Tokens) -> bytes:
        index, ids, entries = output.index, output.ids, output.logprobs or ()
        self.choices[index].tokens += len(ids)
        if (tail := self.plain_tail(index)) is not None:
            messages = [plain_message(one, tail) for one in ids]
        else:
            messages = [self._chunk(index, [one], entries[at : at + 1]) for at, one in enumerate(ids)]
        if output.finish is not None:
            last = self._of_reply(entries[-1:]) if entries else None
            messages.append(self._complete(index, output.finish, ids[-1:], last))
        return b"".join(messages)

    def _chunk(self, index: int, ids: Sequence[int], entries: Sequence[TokenLogprob]) -> bytes:
        said = engine.GenerateStreamChunk(
            token_ids=ids,
            prompt_tokens=self._told_prompt,
            completion_tokens=len(ids),
            cached_tokens=self.told_cached,
            output_logprobs=self._of_reply(entries) if entries else None,
            input_logprobs=None if index in self._begun else self._of_prompt(),
            index=index,
        )
        self._begun.add(index)
        return framed(engine.GenerateResponse(chunk=said).SerializeToString())

    def _whole(self, output: Tokens) -> bytes:
        choice, kept = self.choices[output.index], self._kept[output.index]
        choice.count(output)
        choice.ids += output.ids
        self._of_reply(output.logprobs or (), kept)
        if output.finish is None:
            return b""
        return self._complete(output.index, output.finish, choice.ids, kept if kept.token_ids else None)

    def _complete(self, index: int, finish: Finish, ids: Sequence[int], logprobs: Proto) -> bytes:
        """Returns the end of a choice. In a stream it repeats only the last token, as in vLLM."""
        said = engine.GenerateComplete(
            output_ids=ids,
            finish_reason=finish.reason,
            prompt_tokens=self._told_prompt,
            completion_tokens=self.usage.told(0, len(ids))[1],
            cached_tokens=self.told_cached,
            output_logprobs=logprobs,
            input_logprobs=self._of_prompt(),
            index=index,
        )
        if isinstance(finish.stop_reason, int):
            said.matched_token_id = finish.stop_reason
        elif finish.stop_reason is not None:
            said.matched_stop_str = finish.stop_reason
        if (transfer := self._transfer) is not None:
            said.kv_transfer_params_json = msgspec.json.encode(transfer).decode()
            said.kv_transfer_params.remote_host = transfer.remote_host
            said.kv_transfer_params.remote_port = transfer.remote_port
        return framed(engine.GenerateResponse(complete=said).SerializeToString())

    def _of_reply(self, entries: Sequence[TokenLogprob], to: Proto = None) -> Proto:
        to = engine.OutputLogProbs() if to is None else to
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


def plain_message(token_id: int, tail: bytes) -> bytes:
    number = varint(token_id)
    size = len(number) + len(tail) + 2
    return PLAIN_MESSAGE % (size + 2, size, len(number), number, tail)


def _add_top(to: Proto, entry: TokenLogprob | None, top: int) -> None:
    alternatives = to.top_logprobs.add()
    if entry is not None:
        shown = entry.top if top == ALL else entry.top[:top]
        alternatives.token_ids.extend([token_id for token_id, _, _ in shown])
        alternatives.values.extend([logprob for _, _, logprob in shown])


class MessageStream(EventStream):
    """A stream of messages; those of one choice's plain tokens differ only in the token."""

    __slots__ = ()

    def emit(self, output: EngineOutput) -> TakeToken | None:
        super().emit(output)
        writer, index = self.writer, output.index
        if type(output) is not Started or not isinstance(writer, RpcWriter):
            return None
        if (tail := writer.plain_tail(index)) is None:
            return None
        choice = writer.choices[index]

        def take(text: str, token_id: int, at_s: float) -> None:
            transport = self.transport
            if transport is None or transport.lags or not self.unfinished:
                self.emit(Tokens(index, [text], [token_id], at_s))
                return
            message = plain_message(token_id, tail)
            choice.tokens += 1
            self.bytes_sent += len(message)
            transport.send_soon(message)

        return take


NO_MESSAGE = b"\xff\xff\xff"
"""Bytes that begin no field."""
COMPLETE = b"\x12"
"""First byte of a message that ends a choice."""


class DamagedMessages(DamagedStream):
    """A damaged stream of messages, which a greenlet writes."""

    def __init__(self, stream: EventStream, damage: Damage) -> None:
        super().__init__(stream, damage, None)
        self.leave = stream.leave

    def attach(self, transport: StreamTransport) -> None:
        transport.start(self)
        gevent.spawn(self._write, transport)

    def next_slice(self) -> tuple[bytes, bool, bool]:
        """Returns nothing: the greenlet writes."""
        return b"", False, False

    def _write(self, transport: StreamTransport) -> None:
        try:
            for piece in chain(self, (None,)):
                if not transport.is_open:
                    return
                transport.write(piece or b"", last=piece is None)
        except BrokenOffError:
            transport.break_off()

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
        body = MessageStream(writer, len(requests), entries_per_token=entries)
        body.handle = self.engine.submit(requests, body.emit)
        response = RpcResponse(body, self.headers, writer.outcome)
        if fault is not None:
            response.headers.update(fault.headers)
            if fault.damage is not None:
                response.body = DamagedMessages(body, fault.damage)
        self.load.begin()
        response.on_close(self.load.end)
        return response

    def broken(self, error: ApiError, writer: ResponseWriter) -> Response:
        """Raises the error, which becomes the status."""
        raise error
