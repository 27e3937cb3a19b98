"""Plain requests for generation, which the fast path answers.

Decoding into one of these structs proves that a body has no other fields and that its numbers are in range.
`PlainReader` checks the rest against the served model. All other requests, invalid ones included, take the
general path, which reports errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from app.serving.protocol.completions import DEFAULT_MAX_TOKENS
from app.serving.protocol.options import Int64
from app.serving.protocol.validation import ModelLimits

MOST_TOKENS = 4096
"""Most tokens of a reply on the fast path."""

Count = Annotated[int, Meta(ge=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]


class PlainStreamOptions(Struct, forbid_unknown_fields=True, frozen=True):
    """Stream options of a plain request."""

    include_usage: bool = False


class PlainRequest(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Fields without effect on a simulated model, or with one effect only."""

    model: str | None = None
    max_tokens: Count | None = None
    stream: bool | None = False
    stream_options: PlainStreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    n: Literal[1] = 1
    seed: Int64 | None = None
    ignore_eos: bool = False
    min_tokens: Annotated[int, Meta(ge=0)] = 0
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    stop: None = None
    user: str | None = None

    @property
    def prompt_key(self) -> bytes:
        raise NotImplementedError

    @property
    def limit(self) -> int | None:
        """The request's token limit; None without one."""
        return self.max_tokens


class PlainChat(PlainRequest, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A plain chat; messages are parsed only when their bytes are new."""

    messages: Raw
    max_completion_tokens: Count | None = None

    @property
    def prompt_key(self) -> bytes:
        return bytes(self.messages)

    @property
    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class PlainCompletion(PlainRequest, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A plain completion of one text."""

    prompt: str
    logprobs: None = None
    suffix: None = None

    @property
    def prompt_key(self) -> bytes:
        return self.prompt.encode()

    @property
    def limit(self) -> int | None:
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens


P = TypeVar("P", bound=PlainRequest)


class Recognised(Struct, Generic[P], frozen=True):
    """A plain request that fits the served model."""

    request: P
    prompt_ids: Sequence[int]
    max_tokens: int
    limited: bool
    """True if the request has a token limit."""


class PlainReader(Generic[P]):
    """Recognises plain requests of one `kind` for a model with these `limits`.

    `prompt_ids` returns a prompt's token ids for its bytes; None when they are not available at once. `names`
    has the served model's names; while empty, no request is plain. Prompts have at most `most_prompt_tokens`.
    """

    def __init__(
        self,
        kind: type[P],
        prompt_ids: Callable[[bytes], Sequence[int] | None],
        limits: ModelLimits,
        most_prompt_tokens: int,
    ) -> None:
        self.names: frozenset[str | None] = frozenset()
        self._decode = msgspec.json.Decoder(kind).decode
        self._prompt_ids = prompt_ids
        self._limits = limits
        self._longest_reply = limits.room_behind(0)
        self._most_prompt_tokens = most_prompt_tokens

    def recognise(self, body: bytes) -> Recognised[P] | None:
        """Returns the request in `body`; None, with nothing drawn or counted, when not plain."""
        try:
            request = self._decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if request.model not in self.names or (request.stream_options is not None and not request.stream):
            return None
        limit, limits = request.limit, self._limits
        if limit is not None and limit > limits.max_model_len:
            return None
        ids = self._prompt_ids(request.prompt_key)
        if not ids or len(ids) > self._most_prompt_tokens:
            return None
        room = min(limits.max_model_len - len(ids), self._longest_reply)  # `room_behind`, inlined
        most = room if limit is None else min(limit, room)
        if most < 1 or request.min_tokens > most:
            return None
        if most > MOST_TOKENS and (
            limit is not None or request.ignore_eos or request.min_tokens > MOST_TOKENS
        ):
            return None
        return Recognised(request, ids, most, limit is not None)
