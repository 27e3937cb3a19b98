"""Plain requests for generation: those that ask for nothing special, which the fast path answers.

That a body decodes into one of the structs here *proves* that none of the other fields is there and that
every number is in its range, in place of many checks. What is left is compared with the served model. A
request that is not plain for any reason is left to the general way, which also tells what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from app.api.frontend import Frontend
from app.api.response_meta import Head
from app.api.writer import ResponseWriter
from app.engine.observer import Observers
from app.engine.request import EngineRequest
from app.http.context import RequestContext
from app.http.response import PendingResponse, Response
from app.protocol.options import Int64
from app.protocol.validation.limits import GREEDY_BELOW
from app.tokenization import PLAIN_CHAT
from config.settings import Settings

MOST_TEXT_BYTES = 2048
"""Longer prompts that were never seen are tokenized by the general way, which can wait."""
MOST_TOKENS = 4096
"""Longer replies are made by the general way."""
SPECIAL_HEADERS = frozenset(
    (
        *("x-fault", "x-return-error", "x-send-image", "x-vllm-priority"),
        *("x-data-parallel-rank", "x-cache-threshold-finish-reason"),
    )
)
"""Headers that ask for more than a plain request may."""

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


class PlainChat(PlainRequest, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A plain chat; what its messages say is known by their bytes, if they came before."""

    messages: Raw
    max_completion_tokens: Count | None = None


class PlainMessage(Struct, forbid_unknown_fields=True, frozen=True):
    """A message that is a text."""

    role: Literal["system", "user", "assistant"]
    content: str


class PlainCompletion(PlainRequest, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A plain completion of one text."""

    prompt: str
    logprobs: None = None
    suffix: None = None


class Recognised(Struct, frozen=True):
    """A plain request, compared with the model that serves it."""

    request: PlainRequest
    model: str
    prompt_ids: Sequence[int]
    max_tokens: int
    limited: bool
    """The client itself set a limit."""


P = TypeVar("P", bound=PlainRequest)


class PlainHandler(Generic[P]):
    """Recognises and answers the plain requests of one family: see `app.http.route.PlainHandler`."""

    special_headers = SPECIAL_HEADERS

    def __init__(self, frontend: Frontend, kind: type[P]) -> None:
        self._frontend = frontend
        self._decode = msgspec.json.Decoder(kind).decode
        self._names: frozenset[str | None] = frozenset()
        self._least_hit_rate = 0.0

    def on_settings(self, settings: Settings) -> None:
        """Find out whether any request can be plain now."""
        frontend = self._frontend
        reply = settings.reply
        special = (
            reply.mode == "echo"
            or frontend.limits.reasons
            or frontend.omni
            or frontend.encoder_only
            or frontend.keeps_turns
            or frontend.tokenizer.vocab_size is None  # a remote one, which has to be waited for
        )
        names = frontend.models.names
        self._names = frozenset() if special else frozenset((None, "", *names))
        self._least_hit_rate = settings.kvcache.global_cache_hit_threshold

    def prompt_ids(self, request: P) -> Sequence[int] | None:
        """The tokens of the prompt; None when they cannot be had at once."""
        raise NotImplementedError

    def limit(self, request: P, room: int) -> tuple[int, bool]:
        """Tokens that may be generated where `room` is left in the context; whether the client set a limit.
        """
        raise NotImplementedError

    def writer(self, recognised: Recognised, head: Head) -> ResponseWriter:
        """What writes the answer."""
        raise NotImplementedError

    id_prefix = ""

    def recognise(self, context: RequestContext, body: bytes) -> Recognised | None:
        frontend = self._frontend
        if context.content_type != "application/json" or not frontend.faults.spares(context):
            return None
        try:
            request = self._decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if request.model not in self._names or frontend.responder.engine.draining:
            return None
        if request.stream_options is not None and not request.stream:
            return None
        ids = self.prompt_ids(request)
        if not ids or len(ids) > frontend.plain_prompt_tokens:
            return None
        length = frontend.limits.max_model_len
        wanted, limited = self.limit(request, length - len(ids))
        most = min(wanted, length - len(ids))
        too_long = wanted > length or (limited and most > MOST_TOKENS)
        if most < 1 or too_long or request.min_tokens > min(most, MOST_TOKENS):
            return None
        if request.ignore_eos and most > MOST_TOKENS:
            return None
        return Recognised(request, frontend.models.names[0], ids, most, limited)

    def answer(self, context: RequestContext, recognised: Recognised) -> Response | PendingResponse:
        frontend, request = self._frontend, recognised.request
        context.is_generation = True
        responder = frontend.responder
        responder.engine.preflight(1)
        head = frontend.identity.head(self.id_prefix, context, "", recognised.model)
        writer = self.writer(recognised, head)
        responder.engine.admit(1)
        temperature = request.temperature
        wanted = EngineRequest(
            request_id=head.id,
            index=0,
            model=recognised.model,
            prompt_ids=recognised.prompt_ids,
            echo_text="",
            max_tokens=recognised.max_tokens,
            limited=recognised.limited,
            arrival_s=context.arrival_s,
            min_tokens=request.min_tokens,
            ignore_eos=request.ignore_eos,
            seed=None if request.seed == -1 else request.seed,
            greedy=temperature is not None and temperature < GREEDY_BELOW,
            least_hit_rate=self._least_hit_rate,
            observers=context.kept(Observers) or (),
        )
        return responder.respond_soon((wanted,), writer, bool(request.stream), context)


def short_chat(frontend: Frontend, raw: bytes) -> Sequence[int] | None:
    """The prompt of a conversation that was never seen; None when it is long, or more than texts."""
    if len(raw) > MOST_TEXT_BYTES:
        return None
    try:
        messages = _MESSAGES.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not messages:
        return None
    return frontend.tokenizer.encode_chat(msgspec.to_builtins(messages), PLAIN_CHAT)


_MESSAGES = msgspec.json.Decoder(list[PlainMessage])
