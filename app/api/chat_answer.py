"""Chat completions as vLLM writes them: one JSON, or server-sent events (vllm-api.md 3.3, 3.4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from app.api.head import AnswerShape, Head, usage
from app.api.sse import DONE, error_event
from app.api.token_logprobs import chat_entries, prompt_entries
from app.events import Event, Failed, Finish, Started, TokenLogprob, Tokens

dumps = msgspec.json.Encoder().encode
CHUNK = "chat.completion.chunk"


class ChatShape(AnswerShape, frozen=True, kw_only=True):
    """What a chat request asked to see in its answer."""

    prompt_ids: Sequence[int]
    role: str = "assistant"
    echo: str = ""
    top_logprobs: int | None = None
    """Alternatives shown; None without log probabilities."""
    prompt_text: str | None = None


@dataclass(slots=True)
class _Choice:
    """One whole choice, gathered from its events."""

    text: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: Finish | None = None


class ChatAnswer:
    """Writes one chat request's events down."""

    __slots__ = (
        "_cached_tokens",
        "_completion",
        "_content",
        "_deltas",
        "_failed",
        "_head",
        "_opened",
        "_plain",
        "_shape",
    )

    def __init__(self, head: Head, shape: ChatShape) -> None:
        self._head = head
        self._shape = shape
        self._completion = [0] * shape.n
        self._cached_tokens = 0
        self._opened = False
        self._failed = False
        self._deltas: list[bytes] = []
        self._content: list[bytes] = []
        self._plain = shape.top_logprobs is None and not shape.token_ids and not shape.continuous_usage

    def chunk(self, event: Event) -> bytes:
        if type(event) is Tokens:
            if self._plain and event.finish is None and len(event.texts) == 1:
                # Nearly every event of a paced stream is such a one.
                self._completion[event.index] += 1
                return b"%b%b%b" % (self._content[event.index], dumps(event.texts[0]), PLAIN_TAIL)
            return self._tokens(event)
        if type(event) is Started:
            return self._open(event)
        assert type(event) is Failed
        self._failed = True
        return error_event(event.error)

    def closing(self) -> bytes:
        if not self._shape.include_usage or self._failed:
            return DONE
        shape = self._shape
        counted = usage(len(shape.prompt_ids), sum(self._completion))
        if shape.prompt_details:
            counted["prompt_tokens_details"] = {
                "cached_tokens": self._cached_tokens,
                "created_cache_tokens": 0,
            }
        return self._head.usage_event(CHUNK, counted) + DONE

    def _open(self, event: Started) -> bytes:
        """The role chunks of all choices leave together, when the first choice begins."""
        if self._opened:
            return b""
        self._opened = True
        self._prepare()
        self._cached_tokens = event.cached_tokens
        shape = self._shape
        delta = dumps({"role": shape.role, "content": ""})
        ids = dumps(shape.prompt_ids if shape.token_ids else None)
        tail = b',"logprobs":null,"finish_reason":null}]%b,"prompt_token_ids":%b,"prompt_text":%b}\n\n' % (
            self._usage(0),
            ids,
            dumps(shape.prompt_text),
        )
        chunks = [opening + delta + tail for opening in self._deltas]
        if shape.echo:
            tail = b'},"logprobs":null,"finish_reason":null}]' + self._usage(0) + b"}\n\n"
            chunks += [content + dumps(shape.echo) + tail for content in self._content]
        return b"".join(chunks)

    def _prepare(self) -> None:
        """Render what all chunks of a choice begin with."""
        opening = self._head.opening(CHUNK)
        self._deltas = [opening + b'%d,"delta":' % i for i in range(self._shape.n)]
        self._content = [delta + b'{"content":' for delta in self._deltas]

    def _tokens(self, event: Tokens) -> bytes:
        content, last = self._content[event.index], len(event.texts) - 1
        chunks: list[bytes] = []
        for i, text in enumerate(event.texts):
            if i == last and event.finish is not None:
                break
            if self._plain:
                chunks += (content, dumps(text), PLAIN_TAIL)
            else:
                chunks += (content, dumps(text), self._tail(event, i, None))
        if self._plain:
            self._completion[event.index] += len(event.texts)
        if event.finish is not None:
            chunks += self._last(event, last, event.finish)
        return b"".join(chunks)

    def _last(self, event: Tokens, i: int, finish: Finish) -> tuple[bytes, ...]:
        """The chunk of the last token; without more text, its delta is an empty object, as recorded."""
        text = event.texts[i] if i >= 0 else ""
        delta = (self._content[event.index], dumps(text)) if text else (self._deltas[event.index], b"{")
        return *delta, self._tail(event, max(i, 0), finish)

    def _tail(self, event: Tokens, i: int, finish: Finish | None) -> bytes:
        """All that follows the text in the chunk of token `i` of `event`."""
        shape = self._shape
        ids = event.ids[i : i + 1]
        if not self._plain:
            self._completion[event.index] += len(ids)
        logprobs = None
        if shape.top_logprobs is not None and event.logprobs is not None:
            logprobs = {
                "content": chat_entries(event.logprobs[i : i + 1], shape.top_logprobs, shape.token_id_names)
            }
        stop = b"" if finish is None else b',"stop_reason":' + dumps(finish.stop_reason)
        fingerprint = b""
        if finish is not None and not shape.include_usage:
            fingerprint = b',"system_fingerprint":' + dumps(self._head.fingerprint)
        return b'},"logprobs":%b,"finish_reason":%b%b,"token_ids":%b}]%b%b}\n\n' % (
            dumps(logprobs),
            dumps(None if finish is None else finish.reason),
            stop,
            dumps(ids if shape.token_ids else None),
            self._usage(self._completion[event.index]),
            fingerprint,
        )

    def _usage(self, completion_tokens: int) -> bytes:
        if not self._shape.continuous_usage:
            return b""
        counted = usage(len(self._shape.prompt_ids), completion_tokens, completion_tokens_details=None)
        return b',"usage":' + dumps(counted)

    def body(self, events: Iterable[Event]) -> bytes:
        choices = [_Choice() for _ in range(self._shape.n)]
        prompt_logprobs = None
        for event in events:
            if type(event) is Tokens:
                choice = choices[event.index]
                choice.text += event.texts
                choice.ids += event.ids
                choice.logprobs += event.logprobs or ()
                choice.finish = event.finish
            elif type(event) is Started:
                self._cached_tokens = event.cached_tokens
                prompt_logprobs = prompt_entries(event.prompt_logprobs)
            elif type(event) is Failed:
                raise event.error
        return dumps(self._whole(choices, prompt_logprobs))

    def _whole(self, choices: Sequence[_Choice], prompt_logprobs: Any) -> dict[str, Any]:
        head, shape = self._head, self._shape
        details = None
        if shape.prompt_details:
            details = {
                "cached_tokens": self._cached_tokens,
                "created_cache_tokens": 0,
                "multimodal_tokens": None,
            }
        completion_tokens = sum(len(choice.ids) for choice in choices)
        return {
            **head.fields("chat.completion"),
            "choices": [self._choice(i, choice) for i, choice in enumerate(choices)],
            "service_tier": None,
            "system_fingerprint": head.fingerprint,
            "usage": usage(
                len(shape.prompt_ids),
                completion_tokens,
                prompt_tokens_details=details,
                completion_tokens_details=None,
            ),
            "prompt_logprobs": prompt_logprobs,
            "prompt_token_ids": shape.prompt_ids if shape.token_ids else None,
            "prompt_text": shape.prompt_text,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _choice(self, index: int, choice: _Choice) -> dict[str, Any]:
        shape, finish = self._shape, choice.finish or Finish("abort")
        logprobs = None
        if shape.top_logprobs is not None:
            logprobs = {"content": chat_entries(choice.logprobs, shape.top_logprobs, shape.token_id_names)}
        message = {
            "role": shape.role,
            "content": shape.echo + "".join(choice.text),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
        return {
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": finish.reason,
            "stop_reason": finish.stop_reason,
            "token_ids": choice.ids if shape.token_ids else None,
            "routed_experts": None,
        }


PLAIN_TAIL = b'},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
"""What follows the text in a chunk of which nothing special was asked."""
