"""Plain requests for generation: those that ask for nothing special, which the fast path answers.

That a body decodes into one of the structs here *proves* that none of the other fields is there and that
every number is in its range, in place of many checks. What is left is compared with the served model. A
request that is not plain for any reason is left to the general way, which also tells what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from app.protocol.completions import DEFAULT_MAX_TOKENS
from app.protocol.options import Int64
from app.protocol.validation import ModelLimits

MOST_TOKENS = 4096
"""Longer replies are made by the general way."""

Count = Annotated[int, Meta(ge=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]


class PlainStreamOptions(Struct, forbid_unknown_fields=True, frozen=True):
    """What a plain stream may carry beside its tokens."""

    include_usage: bool = False


class PlainRequest(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Fields that do not change what a simulated model does, or do it in one way only."""

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
        """Tokens that the client allows; None when it set no limit."""
        return self.max_tokens


class PlainChat(PlainRequest, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A plain chat; its messages are looked at only when their bytes are new."""

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
    """A plain request, compared with the model that serves it."""

    request: P
    prompt_ids: Sequence[int]
    max_tokens: int
    limited: bool
    """The client itself set a limit."""


class PlainReader(Generic[P]):
    """Recognises plain requests of one `kind` for a model with these `limits`.

    `prompt_ids` gives the tokens of a prompt by its bytes, None when they cannot be had at once. `names` are
    those of the model that may be asked for; while there are none, no request is plain. Prompts have at most
    `most_prompt_tokens`.
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
        """The request in `body`; None, with nothing drawn or counted, when it is not plain."""
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
        room = min(limits.max_model_len - len(ids), self._longest_reply)  # room_behind, a call less
        most = room if limit is None else min(limit, room)
        if most < 1 or request.min_tokens > most:
            return None
        if most > MOST_TOKENS and (
            limit is not None or request.ignore_eos or request.min_tokens > MOST_TOKENS
        ):
            return None
        return Recognised(request, ids, most, limit is not None)
