"""Chat completions as vLLM writes them: one JSON, or server-sent events (vllm-api.md 3.3, 3.4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from app.api.chat.message import WholeChoice, finish_reason
from app.api.chat.options import ChatShape, image_block, text_block
from app.api.errors import as_stream_error
from app.api.logprobs import chat_entries, prompt_entries
from app.api.response_meta import Head, usage
from app.engine.outputs import EngineOutput, Failed, Finish, Part, Started, Tokens
from app.http.sse import DONE, error_event

dumps = msgspec.json.Encoder().encode
CHUNK = "chat.completion.chunk"
Delta = dict[str, Any]


class ChatAnswer:
    """Writes one chat request's events down."""

    __slots__ = (
        "_cached_tokens",
        "_call_ids",
        "_completion",
        "_content",
        "_deltas",
        "_failed",
        "_head",
        "_opened",
        "_plain",
        "_reasoning",
        "_shape",
    )

    def __init__(self, head: Head, shape: ChatShape) -> None:
        self._head = head
        self._shape = shape
        self._completion = [0] * shape.n
        self._reasoning = [0] * shape.n
        self._call_ids: dict[tuple[int, int], str] = {}
        """Ids of the calls begun, by choice and number."""
        self._cached_tokens = 0
        self._opened = False
        self._failed = False
        self._deltas: list[bytes] = []
        self._content: list[bytes] = []
        special = shape.token_ids or shape.continuous_usage or shape.blocks or shape.parsed is not None
        self._plain = shape.top_logprobs is None and not special

    def chunk(self, event: EngineOutput) -> bytes:
        if type(event) is Tokens:
            if self._plain and event.finish is None and event.part is None and len(event.texts) == 1:
                # Nearly every event of a paced stream is such a one.
                self._completion[event.index] += 1
                return b"%b%b%b" % (self._content[event.index], dumps(event.texts[0]), PLAIN_TAIL)
            if self._shape.parsed is not None:
                called = event.part is not None and event.part.kind == "call"
                self._shape.parsed(True, called, max(1, len(event.ids)))
            return self._tokens(event) if event.part is None else self._part(event, event.part)
        if type(event) is Started:
            return self._open(event)
        assert type(event) is Failed
        self._failed = True
        return error_event(as_stream_error(event.error))

    def closing(self) -> bytes:
        if not self._shape.include_usage or self._failed:
            return DONE
        shape = self._shape
        counted = usage(len(shape.prompt_ids), sum(self._completion))
        if shape.reasons:
            counted["completion_tokens_details"] = {"reasoning_tokens": sum(self._reasoning)}
        if shape.prompt_details:
            counted["prompt_tokens_details"] = {
                "cached_tokens": self._cached_tokens,
                "created_cache_tokens": 0,
                **({"multimodal_tokens": shape.media_tokens} if shape.media_tokens else {}),
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
            self._usage(None),
            ids,
            dumps(shape.prompt_text),
        )
        chunks = [opening + delta + tail for opening in self._deltas]
        if shape.echo:
            tail = b'},"logprobs":null,"finish_reason":null}]' + self._usage(None) + b"}\n\n"
            chunks += [content + dumps(shape.echo) + tail for content in self._content]
        return b"".join(chunks)

    def _prepare(self) -> None:
        """Render what all chunks of a choice begin with."""
        opening = self._head.opening(CHUNK)
        self._deltas = [opening + b'%d,"delta":' % i for i in range(self._shape.n)]
        self._content = [delta + b'{"content":' for delta in self._deltas]

    def _tokens(self, event: Tokens) -> bytes:
        """The chunks of text; without any left, the last delta is an empty object, as recorded."""
        content, last = self._content[event.index], len(event.texts) - 1
        chunks: list[bytes] = []
        for i, text in enumerate(event.texts):
            if i == last and event.finish is not None:
                break
            if self._plain:
                chunks += (content, dumps(text), PLAIN_TAIL)
            else:
                chunks += (content, dumps(self._shown(text)), self._tail(event, i, None))
        if self._plain:
            self._completion[event.index] += len(event.texts)
        if event.finish is not None:
            text = event.texts[last] if last >= 0 else ""
            delta = (content, dumps(self._shown(text))) if text else (self._deltas[event.index], b"{")
            chunks += (*delta, self._tail(event, max(last, 0), event.finish))
        return b"".join(chunks)

    def _shown(self, text: str) -> Any:
        return [text_block(text)] if self._shape.blocks else text

    def _part(self, event: Tokens, part: Part) -> bytes:
        """The chunks of thoughts, calls and images; a token that shows nothing has no chunk of its own."""
        shape, last = self._shape, len(event.texts) - 1
        if part.kind == "reasoning":
            self._reasoning[event.index] += len(event.ids)
        if self._plain:
            self._completion[event.index] += len(event.ids)
        metadata = (shape.token_ids or shape.top_logprobs is not None) and not self._hides()
        chunks: list[bytes] = []
        for i, text in enumerate(event.texts):
            finish = event.finish if i == last else None
            delta = self._delta(event.index, part, text)
            tail = self._tail(event, i, finish) if not self._plain or finish else PLAIN_TAIL
            if delta or finish is not None or metadata:
                chunks += (self._deltas[event.index], dumps(delta)[:-1], tail)
        return b"".join(chunks)

    def _delta(self, index: int, part: Part, text: str) -> Delta:
        """What a client is told of a token; nothing of markup and of hidden thoughts."""
        if part.kind == "reasoning":
            return {"reasoning": text} if text and self._shape.show_reasoning else {}
        if part.kind == "image":
            return {"content": [image_block(text)]}
        call: Delta = {"index": part.number, "function": {"arguments": text}}
        if (index, part.number) not in self._call_ids:
            self._call_ids[index, part.number] = own_id = self._shape.new_call_id()
            named = {"name": part.name, **({"arguments": text} if text else {})}
            call |= {"id": own_id, "type": "function", "function": named}
            return {"tool_calls": [call]}
        return {"tool_calls": [call]} if text else {}

    def _hides(self) -> bool:
        return self._shape.reasons and not self._shape.show_reasoning

    def _tail(self, event: Tokens, i: int, finish: Finish | None) -> bytes:
        """All that follows the delta in the chunk of token `i` of `event`, from its closing brace on."""
        shape = self._shape
        ids = event.ids[i : i + 1]
        if not self._plain:
            self._completion[event.index] += len(ids)
        logprobs = None
        if shape.top_logprobs is not None and event.logprobs is not None and not self._hides():
            logprobs = {
                "content": chat_entries(event.logprobs[i : i + 1], shape.top_logprobs, shape.token_id_names)
            }
        reason, stop, fingerprint = None, b"", b""
        if finish is not None:
            reason = finish_reason(finish, (event.index, 0) in self._call_ids, shape)
            stop = b',"stop_reason":' + dumps(finish.stop_reason)
            if not shape.include_usage:
                fingerprint = b',"system_fingerprint":' + dumps(self._head.fingerprint)
        return b'},"logprobs":%b,"finish_reason":%b%b,"token_ids":%b}]%b%b}\n\n' % (
            dumps(logprobs),
            dumps(reason),
            stop,
            dumps(ids if shape.token_ids and not self._hides() else None),
            self._usage(event.index),
            fingerprint,
        )

    def _usage(self, index: int | None) -> bytes:
        """The usage of a choice so far, if every chunk is to tell it; None before there is a token."""
        if not self._shape.continuous_usage:
            return b""
        completion, thoughts = (0, 0) if index is None else (self._completion[index], self._reasoning[index])
        return b',"usage":' + dumps(self._counted(completion, thoughts))

    def _counted(self, completion_tokens: int, reasoning_tokens: int, **details: Any) -> dict[str, Any]:
        thoughts = {"reasoning_tokens": reasoning_tokens} if self._shape.reasons else None
        prompt_tokens = len(self._shape.prompt_ids)
        return usage(prompt_tokens, completion_tokens, **details, completion_tokens_details=thoughts)

    def body(self, events: Iterable[EngineOutput]) -> bytes:
        choices = [WholeChoice() for _ in range(self._shape.n)]
        prompt_logprobs = None
        for event in events:
            if type(event) is Tokens:
                choices[event.index].take(event)
            elif type(event) is Started:
                self._cached_tokens = event.cached_tokens
                prompt_logprobs = prompt_entries(event.prompt_logprobs)
            elif type(event) is Failed:
                raise event.error
        if self._shape.parsed is not None:
            for choice in choices:
                self._shape.parsed(False, bool(choice.calls), 1)
        return dumps(self._whole(choices, prompt_logprobs))

    def _whole(self, choices: Sequence[WholeChoice], prompt_logprobs: Any) -> dict[str, Any]:
        head, shape = self._head, self._shape
        details = None
        if shape.prompt_details:
            details = {
                "cached_tokens": self._cached_tokens,
                "created_cache_tokens": 0,
                "multimodal_tokens": shape.media_tokens,
            }
        return {
            **head.fields("chat.completion"),
            "choices": [choice.body(i, shape) for i, choice in enumerate(choices)],
            "service_tier": None,
            "system_fingerprint": head.fingerprint,
            "usage": self._counted(
                sum(len(choice.ids) for choice in choices),
                sum(choice.reasoning_tokens for choice in choices),
                prompt_tokens_details=details,
            ),
            "prompt_logprobs": prompt_logprobs,
            "prompt_token_ids": shape.prompt_ids if shape.token_ids else None,
            "prompt_text": shape.prompt_text,
            "kv_transfer_params": shape.transfer,
            "ec_transfer_params": shape.encoded_media,
            "metrics": None,
        }


PLAIN_TAIL = b'},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
"""What follows the delta in a chunk of which nothing special was asked."""
