"""Answers of `/inference/v1/generate` as vLLM writes them: token ids, on request with their text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from app.api.errors import as_stream_error
from app.api.logprobs import chat_entries, prompt_entries
from app.api.response_meta import AnswerShape, Head, usage
from app.engine.outputs import EngineOutput, Failed, Finish, Started, TokenLogprob, Tokens
from app.http.sse import DONE, error_event, event_of

WEIGHTS = "default"
"""Version of the weights, of which there is only one."""


class GenerateShape(AnswerShape, frozen=True, kw_only=True):
    """What a generate request asked to see in its answer."""

    prompt_ids: Sequence[int]
    text: bool = False
    logprobs: bool = False
    transfer: Mapping[str, Any] | None = None
    encoded_media: Mapping[str, Any] | None = None


@dataclass(slots=True)
class _Choice:
    texts: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: Finish = Finish("abort")


class GenerateAnswer:
    """Writes one generate request's events down."""

    def __init__(self, head: Head, shape: GenerateShape) -> None:
        self._head = head
        self._shape = shape
        self._counts = [0] * shape.n
        self._cached_tokens = 0
        self._failed = False
        self._begun = False

    def chunk(self, event: EngineOutput) -> bytes:
        if type(event) is Tokens:
            return self._tokens(event)
        if type(event) is Started:
            self._cached_tokens = event.cached_tokens
            return b""
        assert type(event) is Failed
        self._failed = True
        return error_event(as_stream_error(event.error))

    def closing(self) -> bytes:
        if not self._shape.include_usage or self._failed:
            return DONE
        counted = {
            "request_id": self._head.id,
            "usage": self._usage(sum(self._counts), whole=False),
            "output_mode": self._mode(),
            "choices": [],
        }
        return event_of(counted) + DONE

    def _tokens(self, event: Tokens) -> bytes:
        """One event per token; the end without a token is told with none."""
        chunks = []
        for i in range(max(len(event.ids), 1)):
            last = i >= len(event.ids) - 1
            ids = event.ids[i : i + 1]
            self._counts[event.index] += len(ids)
            finish = event.finish if last else None
            if ids or finish is not None:
                text = "".join(event.texts[i:] if last else event.texts[i : i + 1])
                chunks.append(self._chunk(event, ids, text, finish, (event.logprobs or ())[i : i + 1]))
        return b"".join(chunks)

    def _chunk(
        self,
        event: Tokens,
        ids: Sequence[int],
        text: str,
        finish: Finish | None,
        logprobs: Sequence[TokenLogprob],
    ) -> bytes:
        shape, first = self._shape, not self._begun
        self._begun = True
        choice = self._choice(event.index, ids, text, logprobs, finish)
        count = self._counts[event.index]
        if finish is None:
            choice["weight_versions"] = None
        chunk = {
            "request_id": self._head.id,
            "usage": self._usage(count, whole=False) if shape.continuous_usage else None,
            "prompt_token_ids": shape.prompt_ids if first and shape.token_ids else None,
            "mm_placeholders": None,
            "metrics": None,
            "output_mode": self._mode(),
            "choices": [choice],
        }
        return event_of(chunk)

    def body(self, events: Iterable[EngineOutput]) -> bytes:
        choices = [_Choice() for _ in range(self._shape.n)]
        prompt_logprobs = None
        for event in events:
            if type(event) is Tokens:
                choice = choices[event.index]
                choice.texts += event.texts
                choice.ids += event.ids
                choice.logprobs += event.logprobs or ()
                choice.finish = event.finish or choice.finish
            elif type(event) is Started:
                self._cached_tokens = event.cached_tokens
                prompt_logprobs = prompt_entries(event.prompt_logprobs)
            elif type(event) is Failed:
                raise event.error
        return msgspec.json.encode(self._whole(choices, prompt_logprobs))

    def _whole(self, choices: Sequence[_Choice], prompt_logprobs: Any) -> dict[str, Any]:
        head, shape = self._head, self._shape
        self._counts = [len(choice.ids) for choice in choices]
        return {
            "request_id": head.id,
            "model": head.model,
            "created": head.created,
            "usage": self._usage(sum(self._counts), whole=True),
            "prompt_logprobs": prompt_logprobs,
            "prompt_token_id_logprobs": None,
            "prompt_token_ids": shape.prompt_ids if shape.token_ids else None,
            "mm_placeholders": None,
            "metrics": None,
            "kv_transfer_params": shape.transfer,
            "ec_transfer_params": shape.encoded_media,
            "output_mode": self._mode(),
            "choices": [
                self._choice(i, choice.ids, "".join(choice.texts), choice.logprobs, choice.finish)
                for i, choice in enumerate(choices)
            ],
        }

    def _choice(
        self,
        index: int,
        ids: Sequence[int],
        text: str,
        logprobs: Sequence[TokenLogprob],
        finish: Finish | None,
    ) -> dict[str, Any]:
        shape = self._shape
        return {
            "index": index,
            "finish_reason": None if finish is None else finish.reason,
            "stop_reason": None if finish is None else finish.stop_reason,
            "token_ids": ids,
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": [{"version": WEIGHTS, "start": 0, "end": self._counts[index]}],
            **({"text": text} if shape.text else {}),
            "logprobs": self._entries(logprobs) if shape.logprobs else None,
        }

    def _entries(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        if self._shape.text:
            return {"content": chat_entries(logprobs, -1, False)}
        content = [
            {
                **_candidate(entry.token_id, entry.logprob, 1),
                "top_logprobs": [
                    _candidate(token_id, logprob, rank)
                    for rank, (token_id, _, logprob) in enumerate(entry.top, 1)
                ],
            }
            for entry in logprobs
        ]
        return {"content": content}

    def _usage(self, completion_tokens: int, whole: bool) -> dict[str, Any]:
        details = {"cached_tokens": self._cached_tokens}
        if not whole:
            told = {"prompt_tokens_details": details} if self._shape.prompt_details else {}
            return usage(len(self._shape.prompt_ids), completion_tokens, **told)
        nothing = {"created_cache_tokens": None, "multimodal_tokens": None}
        return usage(
            len(self._shape.prompt_ids),
            completion_tokens,
            prompt_tokens_details={**details, **nothing} if self._shape.prompt_details else None,
            completion_tokens_details=None,
        )

    def _mode(self) -> str:
        return "text" if self._shape.text else "tokens"


def _candidate(token_id: int, logprob: float, rank: int) -> dict[str, Any]:
    return {"token_id": token_id, "logprob": logprob, "rank": rank}
