"""Text completions as vLLM writes them: one JSON, or server-sent events (vllm-api.md 3.3, 3.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from app.api.errors import as_stream_error
from app.api.logprobs import completion_logprobs, prompt_entries, token_name
from app.api.response_meta import AnswerShape, Head, usage
from app.engine.outputs import EngineOutput, Failed, Finish, Started, TokenLogprob, Tokens
from app.http.sse import DONE, error_event

dumps = msgspec.json.Encoder().encode
COMPLETION = "text_completion"


class EchoedPrompt(Struct, frozen=True):
    """A prompt as an answer may repeat it; `token_texts` only when log probabilities are wanted."""

    ids: Sequence[int]
    text: str = ""
    token_texts: Sequence[str] = ()


class CompletionShape(AnswerShape, frozen=True, kw_only=True):
    """What a completion request asked to see in its answer. Choice i belongs to prompt i // n."""

    prompts: Sequence[EchoedPrompt]
    echo: bool = False
    prompt_only: bool = False
    """`echo` with `max_tokens` 0: the prompt is the whole text."""
    logprobs: bool = False
    transfer: Mapping[str, Any] | None = None
    """`kv_transfer_params` of the answer."""


@dataclass(slots=True)
class _Choice:
    """What is known of one choice so far."""

    prompt_entries: Sequence[TokenLogprob | None] | None = None
    count: int = 0
    offset: int = 0
    begun: bool = False
    texts: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    entries: list[TokenLogprob] = field(default_factory=list)
    finish: Finish | None = None


class CompletionAnswer:
    """Writes one completion request's events down."""

    __slots__ = ("_cached_tokens", "_choices", "_failed", "_head", "_plain", "_shape", "_texts")

    def __init__(self, head: Head, shape: CompletionShape) -> None:
        self._head = head
        self._shape = shape
        self._choices = [_Choice() for _ in range(len(shape.prompts) * shape.n)]
        self._cached_tokens = 0
        self._failed = False
        self._texts: list[bytes] = []
        self._plain = not (shape.logprobs or shape.token_ids or shape.continuous_usage or shape.echo)

    def chunk(self, event: EngineOutput) -> bytes:
        if type(event) is Tokens:
            return self._tokens(event)
        if type(event) is Started:
            self._start(event)
            return b""
        assert type(event) is Failed
        self._failed = True
        return error_event(as_stream_error(event.error))

    def closing(self) -> bytes:
        if not self._shape.include_usage or self._failed:
            return DONE
        counted = usage(self._prompt_tokens(), sum(choice.count for choice in self._choices))
        if self._shape.prompt_details and self._shape.prompts:
            counted["prompt_tokens_details"] = {"cached_tokens": self._cached_tokens}
        return self._head.usage_event(COMPLETION, counted) + DONE

    def _prompt_tokens(self) -> int:
        return sum(len(prompt.ids) for prompt in self._shape.prompts)

    def _start(self, event: Started) -> None:
        self._cached_tokens = event.cached_tokens
        self._choices[event.index].prompt_entries = event.prompt_logprobs

    def _prepare(self) -> None:
        """Render what all chunks of a choice begin with."""
        opening = self._head.opening(COMPLETION)
        self._texts = [opening + b'%d,"text":' % i for i in range(len(self._choices))]

    def _tokens(self, event: Tokens) -> bytes:
        if not self._texts:
            self._prepare()
        opening, choice, last = self._texts[event.index], self._choices[event.index], len(event.texts) - 1
        chunks: list[bytes] = []
        for i, text in enumerate(event.texts):
            finish = event.finish if i == last else None
            if self._plain and finish is None:
                choice.count += 1
                chunks += (opening, dumps(text), PLAIN_TAIL)
            else:
                chunks += (opening, *self._shaped(event, choice, i, text, finish))
        if last < 0 and event.finish is not None:
            chunks += (opening, *self._shaped(event, choice, 0, "", event.finish))
        return b"".join(chunks)

    def _shaped(
        self, event: Tokens, choice: _Choice, i: int, text: str, finish: Finish | None
    ) -> tuple[bytes, bytes]:
        """Text and rest of the chunk of token `i` of `event`, with all that the request asked for."""
        shape = self._shape
        prompt = shape.prompts[event.index // shape.n]
        ids = event.ids[i : i + 1]
        entries: list[TokenLogprob | None] = list(event.logprobs[i : i + 1]) if event.logprobs else []
        names = [""] * len(entries)
        first, choice.begun = not choice.begun, True
        if first and shape.echo:
            text = self._echoed(prompt, text)
            entries, names = self._with_prompt(choice, prompt, entries)
        choice.count += len(ids)
        logprobs = None
        if shape.logprobs:
            logprobs = completion_logprobs(entries, names, shape.token_id_names, choice.offset)
            choice.offset += sum(map(len, logprobs["tokens"]))
        prompt_ids = prompt.ids if first and (shape.token_ids or shape.echo) else None
        return (
            dumps(text),
            b',"logprobs":%b,"finish_reason":%b,"stop_reason":%b,"prompt_token_ids":%b,"token_ids":%b}]%b}\n\n'
            % (
                dumps(logprobs),
                dumps(None if finish is None else finish.reason),
                dumps(None if finish is None else finish.stop_reason),
                dumps(prompt_ids),
                dumps(ids if shape.token_ids else None),
                self._end_of_chunk(choice, len(prompt.ids), finish),
            ),
        )

    def _end_of_chunk(self, choice: _Choice, prompt_tokens: int, finish: Finish | None) -> bytes:
        end = b""
        if self._shape.continuous_usage:
            end += b',"usage":' + dumps(usage(prompt_tokens, choice.count))
        if finish is not None and not self._shape.include_usage:
            end += b',"system_fingerprint":' + dumps(self._head.fingerprint)
        return end

    def _echoed(self, prompt: EchoedPrompt, text: str) -> str:
        # With token ids returned, vLLM leaves the prompt's text away.
        told = "" if self._shape.token_ids else prompt.text
        return told if self._shape.prompt_only else told + text

    def _with_prompt(
        self, choice: _Choice, prompt: EchoedPrompt, entries: Sequence[TokenLogprob | None]
    ) -> tuple[list[TokenLogprob | None], list[str]]:
        """Entries and names of the prompt's tokens, then of the reply's."""
        shape = self._shape
        own = [] if shape.prompt_only else list(entries)
        texts = prompt.token_texts
        if shape.token_id_names:
            texts = [token_name(token_id, "", True) for token_id in prompt.ids]
        return [*(choice.prompt_entries or ()), *own], [*texts, *[""] * len(own)]

    def body(self, events: Iterable[EngineOutput]) -> bytes:
        for event in events:
            if type(event) is Tokens:
                choice = self._choices[event.index]
                choice.texts += event.texts
                choice.ids += event.ids
                choice.entries += event.logprobs or ()
                choice.finish = event.finish
            elif type(event) is Started:
                self._start(event)
            elif type(event) is Failed:
                raise event.error
        return dumps(self._whole())

    def _whole(self) -> dict[str, Any]:
        head, shape = self._head, self._shape
        details = None
        if shape.prompt_details and shape.prompts:
            details = {
                "cached_tokens": self._cached_tokens,
                "created_cache_tokens": None,
                "multimodal_tokens": None,
            }
        completion_tokens = sum(len(choice.ids) for choice in self._choices)
        return {
            **head.fields(COMPLETION),
            "choices": [self._choice(i, choice) for i, choice in enumerate(self._choices)],
            "service_tier": None,
            "system_fingerprint": head.fingerprint,
            "usage": usage(
                self._prompt_tokens(),
                completion_tokens,
                prompt_tokens_details=details,
                completion_tokens_details=None,
            ),
            "kv_transfer_params": shape.transfer,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _choice(self, index: int, choice: _Choice) -> dict[str, Any]:
        shape, finish = self._shape, choice.finish or Finish("abort")
        prompt = shape.prompts[index // shape.n]
        text = "".join(choice.texts)
        entries: list[TokenLogprob | None] = list(choice.entries)
        names = [""] * len(entries)
        if shape.echo:
            text = self._echoed(prompt, text)
            entries, names = self._with_prompt(choice, prompt, entries)
        return {
            "index": index,
            "text": text,
            "logprobs": completion_logprobs(entries, names, shape.token_id_names) if shape.logprobs else None,
            "finish_reason": finish.reason,
            "stop_reason": finish.stop_reason,
            "token_ids": choice.ids if shape.token_ids else None,
            "prompt_logprobs": prompt_entries(choice.prompt_entries),
            "prompt_token_ids": prompt.ids if shape.token_ids else None,
            "routed_experts": None,
        }


PLAIN_TAIL = (
    b',"logprobs":null,"finish_reason":null,"stop_reason":null,'
    b'"prompt_token_ids":null,"token_ids":null}]}\n\n'
)
"""What follows the text in a chunk of which nothing special was asked."""
