"""Answers of Generate: a message for each token of a reply, and one for the end of each choice."""

from collections.abc import Sequence

import msgspec

from app.core.api.errors import as_stream_error
from app.core.api.logprobs import ALL
from app.core.api.responder import EventStream, Responder
from app.core.api.writer import ResponseWriter
from app.core.engine.outputs import EngineOutput, Failed, Finish, TokenLogprob, Tokens
from app.core.engine.request import EngineRequest
from app.core.protocol.completions import CompletionRequest
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError
from app.core.server.http.response import Response
from app.core.server.http.rpc import RpcOutcome, RpcResponse
from app.extensions.grpc.messages import Proto, engine, framed_message


class RpcWriter(ResponseWriter):
    """Writes the answer to one call. A choice that fails makes `outcome` an error."""

    def __init__(self, choices: int, request: CompletionRequest, prompt_ids: Sequence[int]) -> None:
        super().__init__(choices)
        self.outcome = RpcOutcome()
        self._prompt_ids = prompt_ids
        self._stream = bool(request.stream)
        self._top_logprobs = request.logprobs
        self._top_prompt_logprobs = request.prompt_logprobs or 0
        self._input_logprobs: Proto = None
        """Log probabilities of the prompt, once rendered."""
        self._has_sent_prompt: set[int] = set()
        """Choices that have sent the prompt's log probabilities."""
        self._plain_messages: dict[int, Proto] = {}
        """Message of each choice's plain tokens, which differ only in the id."""
        self._output_logprobs: list[Proto] = []
        """Log probabilities of each choice of a whole answer."""
        if not self._stream:
            self._output_logprobs = [engine.OutputLogProbs() for _ in self.choices]

    def chunk(self, output: EngineOutput) -> bytes:
        """Returns the messages of `output` with their prefixes."""
        if type(output) is Tokens:
            if self._stream:
                return self._stream_tokens(output)
            return self._collect_tokens(output)
        if type(output) is Failed:
            self.has_failed = True
            self.outcome.fail(as_stream_error(output.error))
        else:
            self.collect(output)
        return b""

    def closing(self) -> bytes:
        """Returns nothing: the transport sends the status."""
        return b""

    def _stream_tokens(self, output: Tokens) -> bytes:
        index = output.index
        entries = output.logprobs or ()
        self.choices[index].tokens += len(output.ids)
        messages = [
            self._token_message(index, token_id, entries[position : position + 1])
            for position, token_id in enumerate(output.ids)
        ]
        if output.finish is not None:
            last_logprobs = None
            if entries:
                last_logprobs = self._add_logprobs(engine.OutputLogProbs(), entries[-1:])
            messages.append(
                self._complete_message(index, output.finish, output.ids[-1:], last_logprobs)
            )
        return b"".join(messages)

    def _token_message(self, index: int, token_id: int, entries: Sequence[TokenLogprob]) -> bytes:
        message = None
        if not entries:
            message = self._plain_messages.get(index)
        if message is None:
            output_logprobs = input_logprobs = None
            if entries:
                output_logprobs = self._add_logprobs(engine.OutputLogProbs(), entries)
            if index not in self._has_sent_prompt:
                input_logprobs = self._render_prompt_logprobs()
            prompt_tokens, _ = self.usage.override(len(self._prompt_ids), 0)
            chunk = engine.GenerateStreamChunk(
                token_ids=[token_id],
                prompt_tokens=prompt_tokens,
                completion_tokens=1,
                cached_tokens=self.reported_cached_tokens,
                output_logprobs=output_logprobs,
                input_logprobs=input_logprobs,
                index=index,
            )
            message = engine.GenerateResponse(chunk=chunk)
            if not entries and not chunk.HasField("input_logprobs"):
                self._plain_messages[index] = message
            self._has_sent_prompt.add(index)
        message.chunk.token_ids[0] = token_id
        return framed_message(message)

    def _collect_tokens(self, output: Tokens) -> bytes:
        """Collects tokens of a whole answer; returns its message at the end of the choice."""
        choice = self.choices[output.index]
        logprobs = self._output_logprobs[output.index]
        choice.count(output)
        self._add_logprobs(logprobs, output.logprobs or ())
        if output.finish is None:
            return b""
        if not logprobs.token_ids:
            logprobs = None
        return self._complete_message(output.index, output.finish, choice.ids, logprobs)

    def _complete_message(
        self, index: int, finish: Finish, ids: Sequence[int], logprobs: Proto
    ) -> bytes:
        """Returns the end of a choice. In a stream it repeats only the last token, as in vLLM."""
        prompt_tokens, tokens = self.usage.override(len(self._prompt_ids), len(ids))
        # Filled in place: a message with 600,000 log probabilities takes 20 ms to copy.
        response = engine.GenerateResponse()
        complete = response.complete
        complete.output_ids.extend(ids)
        complete.finish_reason = finish.reason
        complete.prompt_tokens = prompt_tokens
        complete.completion_tokens = tokens
        complete.cached_tokens = self.reported_cached_tokens
        complete.index = index
        if logprobs is not None:
            complete.output_logprobs.CopyFrom(logprobs)
        input_logprobs = self._render_prompt_logprobs()
        if input_logprobs is not None:
            complete.input_logprobs.CopyFrom(input_logprobs)
        if isinstance(finish.stop_reason, int):
            complete.matched_token_id = finish.stop_reason
        elif finish.stop_reason is not None:
            complete.matched_stop_str = finish.stop_reason
        if self.transfer is not None:
            complete.kv_transfer_params_json = msgspec.json.encode(self.transfer).decode()
            complete.kv_transfer_params.remote_host = self.transfer.remote_host
            complete.kv_transfer_params.remote_port = self.transfer.remote_port
        return framed_message(response)

    def _add_logprobs(self, logprobs: Proto, entries: Sequence[TokenLogprob]) -> Proto:
        """Adds entries of the reply to the message `logprobs` and returns it."""
        for entry in entries:
            logprobs.token_logprobs.append(entry.logprob)
            logprobs.token_ids.append(entry.token_id)
            if self._top_logprobs:
                _add_top(logprobs, entry, self._top_logprobs)
        return logprobs

    def _render_prompt_logprobs(self) -> Proto:
        if self._input_logprobs is None and self.started.prompt_logprobs is not None:
            self._input_logprobs = engine.InputLogProbs(token_ids=self._prompt_ids)
            for entry in self.started.prompt_logprobs:
                logprob = self._input_logprobs.token_logprobs.add()
                if entry is not None:
                    logprob.value = entry.logprob
                if self._top_prompt_logprobs:
                    _add_top(self._input_logprobs, entry, self._top_prompt_logprobs)
        return self._input_logprobs


def _add_top(logprobs: Proto, entry: TokenLogprob | None, top: int) -> None:
    """Adds the alternatives of a token, which are none for the first token of a prompt."""
    alternatives = logprobs.top_logprobs.add()
    if entry is not None:
        shown = entry.top if top == ALL else entry.top[:top]
        alternatives.token_ids.extend([token_id for token_id, _, _ in shown])
        alternatives.values.extend([logprob for _, _, logprob in shown])


class RpcResponder(Responder, frozen=True):
    """Responds to calls of Generate."""

    def respond(
        self,
        requests: Sequence[EngineRequest],
        writer: ResponseWriter,
        stream: bool,
        context: RequestContext,
    ) -> Response:
        """Returns the response, always a stream: a whole answer is one message per choice."""
        assert isinstance(writer, RpcWriter)
        entries_per_token = 1 + (requests[0].sampling.logprobs or 0)
        body = EventStream(writer, len(requests), entries_per_token=entries_per_token)
        body.handle = self.engine.submit(requests, body.emit)
        response = RpcResponse(body, self.headers, writer.outcome)
        self.load.begin()
        response.on_close(self.load.end)
        return self.faults.damage(response, context)

    def broken(
        self, error: ApiError, writer: ResponseWriter, arrival_s: float | None = None
    ) -> Response:
        """Raises the error, which becomes the status."""
        raise error
