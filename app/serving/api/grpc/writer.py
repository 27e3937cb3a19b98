"""Answers of Generate as vLLM writes them: a message for each token, and one for the end of a choice.

The message of a plain token is assembled by hand, from parts that are the same for a whole choice: protobuf
takes several times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from app.engine.core.outputs import EngineOutput, Finish, Started, TokenLogprob, Tokens
from app.serving.api.errors import as_stream_error
from app.serving.api.grpc.messages import engine, varint
from app.serving.api.writer import ChoiceState, ResponseWriter
from app.serving.http.rpc import RpcOutcome, framed
from app.serving.protocol.common import KVTransferParams
from app.serving.protocol.completions import CompletionRequest

ALL = -1
LONGEST_VARINT = 5
"""Most bytes of a token id."""


PlainParts: TypeAlias = tuple[Sequence[bytes], bytes, ChoiceState]


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
        self._prompt_ids, self._prompt_tokens, self._transfer = prompt_ids, len(prompt_ids), transfer
        self._stream, self._logprobs = bool(request.stream), request.logprobs
        self._top, self._prompt_top = request.logprobs or 0, request.prompt_logprobs or 0
        """Number of alternatives sent per token of the reply, and of the prompt."""
        self._input: Any = None
        """Log probabilities of the prompt, once rendered."""
        self._plain: dict[int, PlainParts] = {}
        self._begun: set[int] = set()
        """Choices that have sent the prompt's log probabilities."""
        keeps = not self._stream and self._logprobs is not None
        self._kept = [engine.OutputLogProbs() for _ in self.choices] if keeps else []

    def chunk(self, output: EngineOutput) -> bytes:
        if type(output) is Tokens:
            return self._stream_of(output) if self._stream else self._whole_of(output)
        if type(output) is Started:
            self.take(output)
            return b""
        self.has_failed = True
        self.outcome.fail(as_stream_error(output.error))  # type: ignore[union-attr]
        return b""

    def closing(self) -> bytes:
        """Returns nothing: the transport sends the status."""
        return b""

    def whole(self) -> msgspec.Struct:
        """Fails: an answer consists of messages only."""
        raise NotImplementedError

    # A stream.

    def plain_heads(self, index: int) -> PlainParts | None:
        """Returns heads of a plain token's message by the id's size in bytes, its tail, and the choice.

        None where messages of tokens have more fields.
        """
        if not self._stream or self._logprobs is not None or self.prompt_logprobs is not None:
            return None
        if (known := self._plain.get(index)) is not None:
            return known
        prompt_tokens, _ = self.usage.told(self._prompt_tokens, 0)
        tail = b"\x10" + varint(prompt_tokens) + b"\x18\x01"
        if self.told_cached:
            tail += b"\x20" + varint(self.told_cached)
        if index:
            tail += b"\x38" + varint(index)
        heads = []
        for size in range(LONGEST_VARINT + 1):  # of the id, in bytes
            chunk = b"\x0a" + varint(size)
            inner = b"\x0a" + varint(len(chunk) + size + len(tail)) + chunk
            heads.append(b"\0" + (len(inner) + size + len(tail)).to_bytes(4, "big") + inner)
        self._plain[index] = found = heads, tail, self.choices[index]
        return found

    def _stream_of(self, output: Tokens) -> bytes:
        choice, index, finish = self.choices[output.index], output.index, output.finish
        choice.tokens += len(output.ids)
        if (plain := self.plain_heads(index)) is not None:
            heads, tail, _ = plain
            messages = [heads[len(number)] + number + tail for number in map(varint, output.ids)]
        else:
            entries = output.logprobs or ()
            each = enumerate(output.ids)
            messages = [self._chunk(index, [one], entries[at : at + 1]) for at, one in each]
        if finish is not None:
            last = _output((output.logprobs or ())[-1:], self._top)
            messages.append(self._complete(index, finish, output.ids[-1:], last))
        return b"".join(messages)

    def _chunk(self, index: int, ids: Sequence[int], entries: Sequence[TokenLogprob]) -> bytes:
        prompt_tokens, _ = self.usage.told(self._prompt_tokens, 0)
        said = engine.GenerateStreamChunk(
            token_ids=ids,
            prompt_tokens=prompt_tokens,
            completion_tokens=len(ids),
            cached_tokens=self.told_cached,
            output_logprobs=_output(entries, self._top),
            input_logprobs=None if index in self._begun else self._input_logprobs(),
            index=index,
        )
        self._begun.add(index)
        return framed(engine.GenerateResponse(chunk=said).SerializeToString())

    # Whole.

    def _whole_of(self, output: Tokens) -> bytes:
        """Returns nothing until a choice is over."""
        choice = self.choices[output.index]
        choice.count(output)
        choice.ids += output.ids
        kept = None
        if self._kept:
            kept = self._kept[output.index]
            _add(kept, output.logprobs or (), self._top)
        if output.finish is None:
            return b""
        return self._complete(output.index, output.finish, choice.ids, kept)

    def _complete(self, index: int, finish: Finish, ids: Sequence[int], logprobs: Any) -> bytes:
        """Returns the end of a choice. In a stream it repeats only the last token, as in vLLM."""
        told, transfer = self.usage.told(self._prompt_tokens, len(ids)), self._transfer
        said = engine.GenerateComplete(
            output_ids=ids,
            finish_reason=finish.reason,
            prompt_tokens=told[0],
            completion_tokens=told[1],
            cached_tokens=self.told_cached,
            output_logprobs=logprobs,
            input_logprobs=self._input_logprobs(),
            index=index,
        )
        if isinstance(finish.stop_reason, int):
            said.matched_token_id = finish.stop_reason
        elif finish.stop_reason is not None:
            said.matched_stop_str = finish.stop_reason
        if transfer is not None:
            said.kv_transfer_params_json = msgspec.json.encode(transfer).decode()
            said.kv_transfer_params.remote_host = transfer.remote_host
            said.kv_transfer_params.remote_port = transfer.remote_port
        return framed(engine.GenerateResponse(complete=said).SerializeToString())

    # Log probabilities.

    def _input_logprobs(self) -> Any:
        """Renders the probabilities of the prompt once."""
        if self.prompt_logprobs is None or self._input is not None:
            return self._input
        self._input = found = engine.InputLogProbs()
        for token_id, entry in zip(self._prompt_ids, self.prompt_logprobs, strict=True):
            probability = found.token_logprobs.add()
            if entry is not None:
                probability.value = entry.logprob
            found.token_ids.append(token_id)
            if self._prompt_top:
                _add_top(found.top_logprobs.add(), entry, self._prompt_top)
        return found


def _output(entries: Sequence[TokenLogprob], top: int) -> Any:
    if not entries:
        return None
    found = engine.OutputLogProbs()
    _add(found, entries, top)
    return found


def _add(to: Any, entries: Sequence[TokenLogprob], top: int) -> None:
    for entry in entries:
        to.token_logprobs.append(entry.logprob)
        to.token_ids.append(entry.token_id)
        if top:
            _add_top(to.top_logprobs.add(), entry, top)


def _add_top(to: Any, entry: TokenLogprob | None, top: int) -> None:
    if entry is not None:
        shown = entry.top if top == ALL else entry.top[:top]
        to.token_ids.extend([token_id for token_id, _, _ in shown])
        to.values.extend([logprob for _, _, logprob in shown])
